#include "engine/ops/conv2d/conv2d_cpu.h"

#include <utility>

#include "engine/ops/attributes.h"
#include "engine/ops/conv2d/small_input_cpu.h"
#include "engine/ops/dnnl_kernel_cpu.h"

namespace tutti {
namespace {

using dnnl::memory;
using Forward = dnnl::convolution_forward;
using GradInput = dnnl::convolution_backward_data;
using GradWeights = dnnl::convolution_backward_weights;

constexpr dnnl::algorithm kDirect = dnnl::algorithm::convolution_direct;

struct Geometry {
  memory::dims strides, before, after;  // padding before and after
};

// oneDNN wants windows that cover the padded image: `after` is what the last window reaches beyond it (negative: it
// leaves a rest).
Geometry GeometryOf(const Node& node, const TensorType& x, const TensorType& y, const std::vector<int64_t>& w) {
  const int64_t stride = IntAttributeOr(node, "stride", 1), padding = IntAttributeOr(node, "padding", 0);
  const auto after = [&](size_t axis) { return (y.dims[axis] - 1) * stride + w[axis] - x.dims[axis] - padding; };
  return {{stride, stride}, {padding, padding}, {after(2), after(3)}};
}

// Descriptions of input image, weight and output image that are tried together, best first.
struct Candidate {
  memory::desc x, w, y;
};

memory::desc Or(const std::optional<memory::desc>& fixed, const std::vector<int64_t>& dims) {
  return fixed ? *fixed : AnyDesc(dims);
}

std::vector<Candidate> Candidates(const std::vector<int64_t>& x, const std::vector<int64_t>& w,
                                  const std::vector<int64_t>& y, const std::optional<memory::desc>& x_fixed,
                                  const std::optional<memory::desc>& w_fixed,
                                  const std::optional<memory::desc>& y_fixed) {
  return {{Or(x_fixed, x), Or(w_fixed, w), Or(y_fixed, y)},
          {AnyDesc(x), Or(w_fixed, w), AnyDesc(y)},
          {Or(x_fixed, x), AnyDesc(w), Or(y_fixed, y)},
          {AnyDesc(x), AnyDesc(w), AnyDesc(y)},
          {PlainDesc(x), PlainDesc(w), PlainDesc(y)}};
}

std::optional<memory::desc> Decided(const std::optional<CpuLayout>& layout) {
  if (!layout) return std::nullopt;
  return ToDesc(*layout);
}

StatusOr<KernelPlan> PlanForward(const KernelRequest& request) {
  const Node& node = *request.node;
  const TensorType& x = InputType(request, 0);
  const TensorType& w = InputType(request, 1);
  const TensorType& y = OutputType(request, 0);
  const bool has_bias = node.inputs.size() == 3;
  const Geometry g = GeometryOf(node, x, y, w.dims);
  const memory::desc bias = has_bias ? PlainDesc({y.dims[1]}) : memory::desc();
  dnnl::primitive_attr attributes = UserScratchpad();
  if (HasRelu(node)) {
    dnnl::post_ops post;
    post.append_eltwise(1.0f, dnnl::algorithm::eltwise_relu, 0.0f, 0.0f);
    attributes.set_post_ops(post);
  }
  auto kernel = std::make_unique<DnnlKernel>(request.context.threads);
  for (const Candidate& c :
       Candidates(x.dims, w.dims, y.dims, FixedInput(request, 0, 4), Decided(request.inputs[1]), std::nullopt)) {
    const Forward::primitive_desc pd(
        {dnnl::prop_kind::forward_training, kDirect, c.x, c.w, bias, c.y, g.strides, g.before, g.after}, attributes,
        kernel->engine(), true);
    if (!IsUsable(pd)) continue;
    std::vector<DnnlArgument> arguments{InputArgument(DNNL_ARG_SRC, pd.src_desc(), 0),
                                        InputArgument(DNNL_ARG_WEIGHTS, pd.weights_desc(), 1),
                                        OutputArgument(DNNL_ARG_DST, pd.dst_desc(), 0)};
    KernelPlan plan;
    plan.input_layouts = {FromDesc(pd.src_desc()), FromDesc(pd.weights_desc())};
    if (has_bias) {
      arguments.push_back(InputArgument(DNNL_ARG_BIAS, bias, 2));
      plan.input_layouts.push_back(FromDesc(bias));
    }
    kernel->Add(Forward(pd), pd.scratchpad_desc(), std::move(arguments));
    plan.output_layouts = {FromDesc(pd.dst_desc())};
    plan.scratch_bytes = kernel->scratch_bytes();
    plan.implementation = ImplementationName(pd);
    plan.kernel = std::move(kernel);
    return MatchDemandedOutputs(request, std::move(plan));
  }
  return NoImplementation(node);
}

StatusOr<KernelPlan> PlanGradInput(const KernelRequest& request) {
  const Node& node = *request.node;
  const TensorType& dy = InputType(request, 0);
  const TensorType& w = InputType(request, 1);
  const TensorType& dx = OutputType(request, 0);
  const Geometry g = GeometryOf(node, dx, dy, w.dims);
  auto kernel = std::make_unique<DnnlKernel>(request.context.threads);
  // The forward's weight layout seldom suits the gradient: the small weight is reordered, the images are not.
  for (const Candidate& c :
       Candidates(dx.dims, w.dims, dy.dims, std::nullopt, std::nullopt, FixedInput(request, 0, 4))) {
    const Forward::primitive_desc hint(
        {dnnl::prop_kind::forward_training, kDirect, c.x, c.w, c.y, g.strides, g.before, g.after}, kernel->engine(),
        true);
    if (hint.get(true) == nullptr) continue;
    const GradInput::primitive_desc pd({kDirect, c.x, c.w, c.y, g.strides, g.before, g.after}, UserScratchpad(),
                                       kernel->engine(), hint, true);
    if (!IsUsable(pd)) continue;
    kernel->Add(
        GradInput(pd), pd.scratchpad_desc(),
        {InputArgument(DNNL_ARG_DIFF_DST, pd.diff_dst_desc(), 0), InputArgument(DNNL_ARG_WEIGHTS, pd.weights_desc(), 1),
         OutputArgument(DNNL_ARG_DIFF_SRC, pd.diff_src_desc(), 0)});
    KernelPlan plan;
    plan.input_layouts = {FromDesc(pd.diff_dst_desc()), FromDesc(pd.weights_desc())};
    plan.output_layouts = {FromDesc(pd.diff_src_desc())};
    plan.scratch_bytes = kernel->scratch_bytes();
    plan.implementation = ImplementationName(pd);
    plan.kernel = std::move(kernel);
    return MatchDemandedOutputs(request, std::move(plan));
  }
  return NoImplementation(node);
}

StatusOr<KernelPlan> PlanDnnlGradWeights(const KernelRequest& request, const Candidate& c, const Geometry& g) {
  const bool has_bias = request.node->outputs.size() == 2;
  const memory::desc diff_bias = has_bias ? PlainDesc({OutputType(request, 0).dims[0]}) : memory::desc();
  auto kernel = std::make_unique<DnnlKernel>(request.context.threads);
  const Forward::primitive_desc hint(
      {dnnl::prop_kind::forward_training, kDirect, c.x, c.w, diff_bias, c.y, g.strides, g.before, g.after},
      kernel->engine(), true);
  if (hint.get(true) == nullptr) return NoImplementation(*request.node);
  const GradWeights::primitive_desc pd({kDirect, c.x, c.w, diff_bias, c.y, g.strides, g.before, g.after},
                                       UserScratchpad(), kernel->engine(), hint, true);
  if (!IsUsable(pd)) return NoImplementation(*request.node);
  std::vector<DnnlArgument> arguments{InputArgument(DNNL_ARG_SRC, pd.src_desc(), 0),
                                      InputArgument(DNNL_ARG_DIFF_DST, pd.diff_dst_desc(), 1),
                                      OutputArgument(DNNL_ARG_DIFF_WEIGHTS, pd.diff_weights_desc(), 0)};
  if (has_bias) arguments.push_back(OutputArgument(DNNL_ARG_DIFF_BIAS, diff_bias, 1));
  kernel->Add(GradWeights(pd), pd.scratchpad_desc(), std::move(arguments));
  KernelPlan plan;
  plan.input_layouts = {FromDesc(pd.src_desc()), FromDesc(pd.diff_dst_desc())};
  plan.output_layouts = {FromDesc(pd.diff_weights_desc())};
  if (has_bias) plan.output_layouts.push_back(FromDesc(diff_bias));
  plan.scratch_bytes = kernel->scratch_bytes();
  plan.implementation = ImplementationName(pd);
  plan.kernel = std::move(kernel);
  return plan;
}

// nullopt: dy is not blocked by channels, or there are too many taps.
std::optional<KernelPlan> PlanOwnGradWeights(const KernelRequest& request, const std::optional<memory::desc>& y_fixed) {
  const TensorType& x = InputType(request, 0);
  const TensorType& dy = InputType(request, 1);
  const TensorType& dw = OutputType(request, 0);
  if (!y_fixed) return std::nullopt;
  const dnnl_blocking_desc_t& blocking = y_fixed->data.format_desc.blocking;
  if (blocking.inner_nblks != 1 || blocking.inner_idxs[0] != 1) return std::nullopt;
  const SmallInputShape shape{.images = x.dims[0],
                              .channels = x.dims[1],
                              .height = x.dims[2],
                              .width = x.dims[3],
                              .outputs = dy.dims[1],
                              .out_height = dy.dims[2],
                              .out_width = dy.dims[3],
                              .block = blocking.inner_blks[0],
                              .kernel_height = dw.dims[2],
                              .kernel_width = dw.dims[3],
                              .stride = IntAttributeOr(*request.node, "stride", 1),
                              .padding = IntAttributeOr(*request.node, "padding", 0),
                              .has_bias = request.node->outputs.size() == 2};
  if (!SuitsSmallInput(shape)) return std::nullopt;
  SmallInputKernel own = MakeSmallInputGradWeights(shape, request.context.threads);
  KernelPlan plan;
  plan.input_layouts = {PlainLayout(x), FromDesc(*y_fixed)};
  plan.output_layouts = {PlainLayout(dw)};
  if (shape.has_bias) plan.output_layouts.push_back(PlainLayout(OutputType(request, 1)));
  plan.scratch_bytes = own.scratch_bytes;
  plan.implementation = "tutti conv2d small input";
  plan.kernel = std::move(own.kernel);
  return plan;
}

StatusOr<KernelPlan> PlanGradWeights(const KernelRequest& request) {
  const Node& node = *request.node;
  const TensorType& x = InputType(request, 0);
  const TensorType& dy = InputType(request, 1);
  const TensorType& dw = OutputType(request, 0);
  const Geometry g = GeometryOf(node, x, dy, dw.dims);
  const std::optional<memory::desc> y_fixed = FixedInput(request, 1, 4);
  std::optional<memory::desc> x_fixed = FixedInput(request, 0, 4);
  if (!x_fixed && request.inputs[0] && y_fixed) x_fixed = PlainDesc(x.dims);
  const std::optional<memory::desc> w_fixed = request.outputs.empty() ? std::nullopt : Decided(request.outputs[0]);
  bool first = true;
  for (const Candidate& c : Candidates(x.dims, dw.dims, dy.dims, x_fixed, w_fixed, y_fixed)) {
    StatusOr<KernelPlan> plan = PlanDnnlGradWeights(request, c, g);
    if (plan.ok()) return MatchDemandedOutputs(request, *std::move(plan));
    if (!std::exchange(first, false)) continue;
    // Own code rather than a reorder of the images.
    if (std::optional<KernelPlan> own = PlanOwnGradWeights(request, y_fixed))
      return MatchDemandedOutputs(request, *std::move(own));
  }
  return NoImplementation(node);
}

KernelFactory Guarded(StatusOr<KernelPlan> (*plan)(const KernelRequest&)) {
  return [plan](const KernelRequest& request) { return CatchDnnl(*request.node, [&] { return plan(request); }); };
}

}  // namespace

Status RegisterConv2dCpu(KernelRegistry* kernels) {
  TUTTI_RETURN_IF_ERROR(kernels->Register("conv2d", Guarded(PlanForward)));
  TUTTI_RETURN_IF_ERROR(kernels->Register("conv2d_grad_input", Guarded(PlanGradInput)));
  return kernels->Register("conv2d_grad_weights", Guarded(PlanGradWeights));
}

}  // namespace tutti
