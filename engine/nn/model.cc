#include "engine/nn/model.h"

#include <fmt/ranges.h>

#include <cmath>

#include "base/check.h"
#include "base/philox.h"
#include "engine/ops/builder.h"

namespace tutti {
namespace {

using Layers = google::protobuf::RepeatedPtrField<v1::Layer>;

std::string_view ActivationOp(v1::ActivationKind kind) {
  switch (kind) {
    case v1::ACTIVATION_KIND_RELU:
      return "relu";
    case v1::ACTIVATION_KIND_GELU:
      return "gelu";
    case v1::ACTIVATION_KIND_TANH:
      return "tanh";
    case v1::ACTIVATION_KIND_SIGMOID:
      return "sigmoid";
    default:
      return "unspecified activation";
  }
}

std::string_view KindName(const v1::Layer& layer) {
  switch (layer.kind_case()) {
    case v1::Layer::kDense:
      return "dense";
    case v1::Layer::kConv2D:
      return "conv2d";
    case v1::Layer::kActivation:
      return ActivationOp(layer.activation().kind());
    case v1::Layer::kMaxPool:
      return "max_pool";
    case v1::Layer::kAvgPool:
      return "avg_pool";
    case v1::Layer::kGlobalPool:
      return "global_pool";
    case v1::Layer::kFlatten:
      return "flatten";
    case v1::Layer::kDropout:
      return "dropout";
    case v1::Layer::kBatchNorm:
      return "batch_norm";
    case v1::Layer::kLayerNorm:
      return "layer_norm";
    case v1::Layer::kResidual:
      return "residual";
    case v1::Layer::KIND_NOT_SET:
      break;
  }
  return "layer of no kind";
}

// Builds one of the two graphs. Both walks name the same parameters in the same order; only the first keeps the lists.
class Walk {
 public:
  Walk(const OpRegistry& ops, bool training, std::span<const int64_t> sample_dims, int64_t rows)
      : builder_(Graph(training ? "training" : "evaluation"), ops), training_(training), rows_(rows) {
    std::vector<int64_t> dims = {rows};
    dims.insert(dims.end(), sample_dims.begin(), sample_dims.end());
    x_ = builder_.AddInput("x", ValueClass::kBatch, {DType::kF32, std::move(dims)});
    labels_ = builder_.AddInput("labels", ValueClass::kBatch, {DType::kI32, {rows}});
    weights_ = builder_.AddInput("weights", ValueClass::kBatch, {DType::kF32, {rows}});
    inverse_valid_ = builder_.AddInput("inverse_valid", ValueClass::kHostScalar, {DType::kF32, {}});
  }

  Status Run(const v1::JobSpec& spec, Model* model) {
    model_ = model;
    TUTTI_RETURN_IF_ERROR(AddLayers(spec.model().layers(), "layers.", /*top=*/true));
    TUTTI_RETURN_IF_ERROR(AddLoss(spec));
    (training_ ? model->training : model->evaluation) = builder_.Take();
    return OkStatus();
  }

 private:
  const std::vector<int64_t>& dims() const { return builder_.type(x_).dims; }

  Status AddLayers(const Layers& layers, const std::string& prefix, bool top) {
    for (int i = 0; i < layers.size(); ++i) {
      const std::string path = fmt::format("{}{}", prefix, i);
      const size_t before = model_->parameters.size();
      TUTTI_RETURN_IF_ERROR(AddLayer(layers[i], path));
      if (!top || !training_) continue;
      v1::LayerPlan& plan = model_->layers.emplace_back();
      plan.set_path(path);
      plan.set_kind(std::string(KindName(layers[i])));
      plan.mutable_output_shape()->Add(dims().begin() + 1, dims().end());
      int64_t parameters = 0;
      for (size_t p = before; p < model_->parameters.size(); ++p) parameters += model_->parameters[p].type.elements();
      plan.set_parameters(parameters);
    }
    return OkStatus();
  }

  Status AddLayer(const v1::Layer& layer, const std::string& path) {
    switch (layer.kind_case()) {
      case v1::Layer::kDense:
        return AddDense(layer.dense(), path);
      case v1::Layer::kConv2D:
        return AddConv2d(layer.conv2d(), path);
      case v1::Layer::kActivation:
        return Apply(ActivationOp(layer.activation().kind()), path, {x_});
      case v1::Layer::kMaxPool:
        return AddPool("max_pool", layer.max_pool(), path);
      case v1::Layer::kAvgPool:
        return AddPool("avg_pool", layer.avg_pool(), path);
      case v1::Layer::kGlobalPool:
        return Apply("global_avg_pool", path, {x_});
      case v1::Layer::kFlatten:
        return Apply("flatten", path, {x_});
      case v1::Layer::kDropout:
        return AddDropout(layer.dropout(), path);
      case v1::Layer::kBatchNorm:
        return AddBatchNorm(layer.batch_norm(), path);
      case v1::Layer::kLayerNorm:
        return AddLayerNorm(layer.layer_norm(), path);
      case v1::Layer::kResidual:
        return AddResidual(layer.residual(), path);
      case v1::Layer::KIND_NOT_SET:
        break;
    }
    return InvalidArgument("{}: the layer has no kind", path);
  }

  Status Apply(std::string_view op, const std::string& path, std::vector<ValueId> inputs, Attributes attributes = {}) {
    TUTTI_ASSIGN_OR_RETURN(const std::vector<ValueId> outputs,
                           builder_.Add(op, path, std::move(inputs), std::move(attributes)));
    x_ = outputs[0];
    outputs_ = outputs;
    return OkStatus();
  }

  Status Expect(const std::string& path, std::string_view kind, size_t rank, std::string_view form) {
    if (dims().size() == rank) return OkStatus();
    return InvalidArgument("{} {}: found samples of shape ({}), expected {}", path, kind,
                           fmt::join(dims().begin() + 1, dims().end(), ", "), form);
  }

  ValueId Parameter(ParameterInfo info) {
    const ValueId id = builder_.AddInput(info.name, ValueClass::kParameter, info.type);
    if (training_) model_->parameters.push_back(std::move(info));
    return id;
  }

  ValueId Statistic(StatisticInfo info) {
    const ValueId id = training_ ? kNoValue : builder_.AddInput(info.name, ValueClass::kStatistic, info.type);
    if (training_) model_->statistics.push_back(std::move(info));
    return id;
  }

  Status AddDense(const v1::Dense& dense, const std::string& path) {
    const int64_t features = builder_.type(x_).elements() / rows_;  // the op reads (C, H, W) as one row
    std::vector<ValueId> inputs = {x_,
                                   Parameter({path + ".weight", {DType::kF32, {dense.units(), features}}, features})};
    if (dense.bias()) {
      inputs.push_back(Parameter({.name = path + ".bias",
                                  .type = {DType::kF32, {dense.units()}},
                                  .fan_in = features,
                                  .is_bias_or_norm = true}));
    }
    return Apply("dense", path, std::move(inputs));
  }

  Status AddConv2d(const v1::Conv2d& conv, const std::string& path) {
    TUTTI_RETURN_IF_ERROR(Expect(path, "conv2d", 4, "(channels, height, width)"));
    const int64_t channels = dims()[1], k = conv.kernel();
    const int64_t fan_in = channels * k * k;
    std::vector<ValueId> inputs = {
        x_, Parameter({path + ".weight", {DType::kF32, {conv.channels(), channels, k, k}}, fan_in})};
    if (conv.bias()) {
      inputs.push_back(Parameter({.name = path + ".bias",
                                  .type = {DType::kF32, {conv.channels()}},
                                  .fan_in = fan_in,
                                  .is_bias_or_norm = true}));
    }
    return Apply("conv2d", path, std::move(inputs), {{"stride", conv.stride()}, {"padding", conv.padding()}});
  }

  Status AddPool(std::string_view op, const v1::Pool& pool, const std::string& path) {
    TUTTI_RETURN_IF_ERROR(Expect(path, op, 4, "(channels, height, width)"));
    return Apply(op, path, {x_}, {{"size", pool.size()}, {"stride", pool.stride()}, {"padding", pool.padding()}});
  }

  Status AddDropout(const v1::Dropout& dropout, const std::string& path) {
    if (!training_ || dropout.rate() == 0) return OkStatus();
    if (seed_ == kNoValue) {
      seed_ = builder_.AddInput("seed", ValueClass::kHostScalar, {DType::kU64, {}});
      batch_index_ = builder_.AddInput("batch_index", ValueClass::kHostScalar, {DType::kI64, {}});
      first_row_ = builder_.AddInput("first_row", ValueClass::kHostScalar, {DType::kI64, {}});
    }
    return Apply("dropout", path, {x_, seed_, batch_index_, first_row_}, {{"rate", dropout.rate()}, {"key", path}});
  }

  Status AddBatchNorm(const v1::BatchNorm& norm, const std::string& path) {
    if (dims().size() != 2)
      TUTTI_RETURN_IF_ERROR(Expect(path, "batch_norm", 4, "(features) or (channels, height, width)"));
    const TensorType type{DType::kF32, {dims()[1]}};
    const int64_t cell = builder_.type(x_).elements() / dims()[1];
    if (training_ && cell < 2) {
      return InvalidArgument("{} batch_norm: a cell has one value per channel, expected at least 2 (batch.micro is {})",
                             path, rows_);
    }
    const ValueId scale = Parameter({.name = path + ".weight", .type = type, .initial = 1, .is_bias_or_norm = true});
    const ValueId shift = Parameter({.name = path + ".bias", .type = type, .is_bias_or_norm = true});
    const std::string names[2] = {path + ".running_mean", path + ".running_variance"};
    const ValueId mean = Statistic({names[0], type, 0, norm.momentum(), false, cell});
    const ValueId variance = Statistic({names[1], type, 1, norm.momentum(), true, cell});
    const Attributes attributes = {{"epsilon", norm.epsilon()}};
    if (!training_) return Apply("batch_norm_inference", path, {x_, scale, shift, mean, variance}, attributes);
    TUTTI_RETURN_IF_ERROR(Apply("batch_norm", path, {x_, scale, shift}, attributes));
    for (int i = 0; i < 2; ++i) builder_.AddOutput("statistic/" + names[i], outputs_[1 + i]);
    return OkStatus();
  }

  Status AddLayerNorm(const v1::LayerNorm& norm, const std::string& path) {
    const TensorType type{DType::kF32, {dims().begin() + 1, dims().end()}};
    const ValueId scale = Parameter({.name = path + ".weight", .type = type, .initial = 1, .is_bias_or_norm = true});
    const ValueId shift = Parameter({.name = path + ".bias", .type = type, .is_bias_or_norm = true});
    return Apply("layer_norm", path, {x_, scale, shift}, {{"epsilon", norm.epsilon()}});
  }

  Status AddResidual(const v1::Residual& residual, const std::string& path) {
    const ValueId start = x_;
    TUTTI_RETURN_IF_ERROR(AddLayers(residual.layers(), path + ".layers.", /*top=*/false));
    if (builder_.type(start) != builder_.type(x_)) {
      return InvalidArgument("{} residual: its layers give {}, expected the shape of its input {}", path,
                             ToString(builder_.type(x_)), ToString(builder_.type(start)));
    }
    return Apply("add", path, {start, x_});
  }

  Status AddLoss(const v1::JobSpec& spec) {
    const int64_t classes = spec.data().classes();
    if (dims().size() != 2 || dims()[1] != classes) {
      return InvalidArgument(
          "model.layers: the last layer gives samples of shape ({}), expected ({}): data.classes is {}",
          fmt::join(dims().begin() + 1, dims().end(), ", "), classes, classes);
    }
    const bool squared = spec.model().loss() == v1::LOSS_MEAN_SQUARED_ERROR;
    TUTTI_RETURN_IF_ERROR(Apply(squared ? "mean_squared_error" : "softmax_cross_entropy", "loss",
                                {x_, labels_, weights_, inverse_valid_}));
    builder_.AddOutput("loss_sum", outputs_[0]);
    builder_.AddOutput("correct", outputs_[1]);
    return OkStatus();
  }

  GraphBuilder builder_;
  const bool training_;
  const int64_t rows_;
  Model* model_ = nullptr;
  ValueId x_, labels_, weights_, inverse_valid_;
  ValueId seed_ = kNoValue, batch_index_ = kNoValue, first_row_ = kNoValue;
  std::vector<ValueId> outputs_;  // of the node added last
};

}  // namespace

int64_t Model::parameter_count() const {
  int64_t count = 0;
  for (const ParameterInfo& p : parameters) count += p.type.elements();
  return count;
}

StatusOr<Model> BuildModel(const v1::JobSpec& spec, std::span<const int64_t> sample_dims, int64_t rows,
                           const OpRegistry& ops) {
  if (spec.model().layers().empty()) return InvalidArgument("model.layers: found none, expected at least one layer");
  Model model;
  TUTTI_RETURN_IF_ERROR(Walk(ops, /*training=*/true, sample_dims, rows).Run(spec, &model));
  TUTTI_RETURN_IF_ERROR(Walk(ops, /*training=*/false, sample_dims, rows).Run(spec, &model));
  if (model.parameters.empty())
    return InvalidArgument("model.layers: no layer has a parameter, so nothing can be trained");
  return model;
}

void InitialValues(const ParameterInfo& parameter, uint64_t seed, std::span<float> plain) {
  TUTTI_CHECK(static_cast<int64_t>(plain.size()) == parameter.type.elements());
  if (parameter.fan_in == 0) {
    std::fill(plain.begin(), plain.end(), parameter.initial);
    return;
  }
  const PhiloxKey key = MakePhiloxKey(seed, "initial/" + parameter.name);
  const float bound = static_cast<float>(1 / std::sqrt(static_cast<double>(parameter.fan_in)));
  for (size_t i = 0; i < plain.size(); i += 4) {
    const uint64_t block = i / 4;
    const auto words = Philox4x32(key, {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 0, 0});
    for (size_t j = 0; j < 4 && i + j < plain.size(); ++j) plain[i + j] = (2 * UnitFloat(words[j]) - 1) * bound;
  }
}

}  // namespace tutti
