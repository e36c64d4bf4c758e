// Products and poolings by their formulas, in f64 and plain order: what the kernels are compared with.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace tutti::reference {

using Values = std::vector<double>;

inline Values Random(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> uniform(-1.0, 1.0);
  Values values(static_cast<size_t>(count));
  for (double& value : values) value = static_cast<float>(uniform(random));
  return values;
}

// An f32 sum of `terms` products of numbers below one: rounding errors are independent, 2^-24 of partial sums of about
// sqrt(terms).
inline double SumTolerance(int64_t terms) { return 0x1.0p-21 * std::max(1.0, static_cast<double>(terms)) / 4; }

struct Convolution {
  int64_t n, c, h, w;  // x
  int64_t o, kernel;   // outputs, kernel height = width
  int64_t stride = 1, padding = 0;
  int64_t out_h() const { return (h + 2 * padding - kernel) / stride + 1; }
  int64_t out_w() const { return (w + 2 * padding - kernel) / stride + 1; }
  int64_t x_count() const { return n * c * h * w; }
  int64_t w_count() const { return o * c * kernel * kernel; }
  int64_t y_count() const { return n * o * out_h() * out_w(); }
};

// fn(index of x, index of w, index of y) for every product.
template <typename Fn>
void ForEachProduct(const Convolution& k, const Fn& fn) {
  for (int64_t n = 0; n < k.n; ++n)
    for (int64_t o = 0; o < k.o; ++o)
      for (int64_t oh = 0; oh < k.out_h(); ++oh)
        for (int64_t ow = 0; ow < k.out_w(); ++ow)
          for (int64_t c = 0; c < k.c; ++c)
            for (int64_t kh = 0; kh < k.kernel; ++kh)
              for (int64_t kw = 0; kw < k.kernel; ++kw) {
                const int64_t ih = oh * k.stride - k.padding + kh, iw = ow * k.stride - k.padding + kw;
                if (ih < 0 || ih >= k.h || iw < 0 || iw >= k.w) continue;
                fn(static_cast<size_t>(((n * k.c + c) * k.h + ih) * k.w + iw),
                   static_cast<size_t>(((o * k.c + c) * k.kernel + kh) * k.kernel + kw),
                   static_cast<size_t>(((n * k.o + o) * k.out_h() + oh) * k.out_w() + ow));
              }
}

inline Values Convolve(const Convolution& k, const Values& x, const Values& w, const Values& bias, bool relu) {
  Values y(static_cast<size_t>(k.y_count()));
  const int64_t positions = k.out_h() * k.out_w();
  for (size_t i = 0; i < y.size(); ++i)
    y[i] = bias.empty() ? 0 : bias[i / static_cast<size_t>(positions) % static_cast<size_t>(k.o)];
  ForEachProduct(k, [&](size_t ix, size_t iw, size_t iy) { y[iy] += x[ix] * w[iw]; });
  if (relu)
    for (double& value : y) value = std::max(value, 0.0);
  return y;
}
inline Values ConvolutionGradInput(const Convolution& k, const Values& dy, const Values& w) {
  Values dx(static_cast<size_t>(k.x_count()));
  ForEachProduct(k, [&](size_t ix, size_t iw, size_t iy) { dx[ix] += dy[iy] * w[iw]; });
  return dx;
}
inline Values ConvolutionGradWeights(const Convolution& k, const Values& x, const Values& dy) {
  Values dw(static_cast<size_t>(k.w_count()));
  ForEachProduct(k, [&](size_t ix, size_t iw, size_t iy) { dw[iw] += dy[iy] * x[ix]; });
  return dw;
}
// Sum over all but axis 1 of (N, C, positions).
inline Values SumOverChannels(const Values& y, int64_t channels, int64_t positions) {
  Values sums(static_cast<size_t>(channels));
  for (size_t i = 0; i < y.size(); ++i)
    sums[i / static_cast<size_t>(positions) % static_cast<size_t>(channels)] += y[i];
  return sums;
}

// c (m, n) = a (m, k) b^T with b (n, k).
inline Values MultiplyTransposed(const Values& a, const Values& b, int64_t m, int64_t n, int64_t k) {
  Values c(static_cast<size_t>(m * n));
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j)
      for (int64_t l = 0; l < k; ++l)
        c[static_cast<size_t>(i * n + j)] += a[static_cast<size_t>(i * k + l)] * b[static_cast<size_t>(j * k + l)];
  return c;
}
inline Values Transpose(const Values& a, int64_t rows, int64_t columns) {
  Values t(a.size());
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      t[static_cast<size_t>(j * rows + i)] = a[static_cast<size_t>(i * columns + j)];
  return t;
}

struct Pooling {
  int64_t planes, h, w, size, stride, padding;
  int64_t out_h() const { return (h + 2 * padding - size) / stride + 1; }
  int64_t out_w() const { return (w + 2 * padding - size) / stride + 1; }
};
// fn(indices of x inside one window, index of y).
template <typename Fn>
void ForEachWindow(const Pooling& p, const Fn& fn) {
  std::vector<size_t> inside;
  for (int64_t plane = 0; plane < p.planes; ++plane)
    for (int64_t oh = 0; oh < p.out_h(); ++oh)
      for (int64_t ow = 0; ow < p.out_w(); ++ow) {
        inside.clear();
        for (int64_t h = oh * p.stride - p.padding; h < oh * p.stride - p.padding + p.size; ++h)
          for (int64_t w = ow * p.stride - p.padding; w < ow * p.stride - p.padding + p.size; ++w)
            if (h >= 0 && h < p.h && w >= 0 && w < p.w)
              inside.push_back(static_cast<size_t>((plane * p.h + h) * p.w + w));
        fn(inside, static_cast<size_t>((plane * p.out_h() + oh) * p.out_w() + ow));
      }
}
inline size_t Winner(const std::vector<size_t>& inside, const Values& x) {
  return *std::max_element(inside.begin(), inside.end(), [&](size_t a, size_t b) { return x[a] < x[b]; });
}
inline Values MaxPool(const Pooling& p, const Values& x) {
  Values y(static_cast<size_t>(p.planes * p.out_h() * p.out_w()));
  ForEachWindow(p, [&](const std::vector<size_t>& inside, size_t to) { y[to] = x[Winner(inside, x)]; });
  return y;
}
inline Values MaxPoolGrad(const Pooling& p, const Values& x, const Values& dy) {
  Values dx(x.size());
  ForEachWindow(p, [&](const std::vector<size_t>& inside, size_t from) { dx[Winner(inside, x)] += dy[from]; });
  return dx;
}
inline Values AveragePool(const Pooling& p, const Values& x) {
  Values y(static_cast<size_t>(p.planes * p.out_h() * p.out_w()));
  ForEachWindow(p, [&](const std::vector<size_t>& inside, size_t to) {
    for (size_t i : inside) y[to] += x[i] / static_cast<double>(inside.size());
  });
  return y;
}
inline Values AveragePoolGrad(const Pooling& p, const Values& dy) {
  Values dx(static_cast<size_t>(p.planes * p.h * p.w));
  ForEachWindow(p, [&](const std::vector<size_t>& inside, size_t from) {
    for (size_t i : inside) dx[i] += dy[from] / static_cast<double>(inside.size());
  });
  return dx;
}

}  // namespace tutti::reference
