// oneDNN's inner product. Images in a blocked layout are read as they are: the weight (U, K) is then stored in a layout
// of the four-dimensional tensor (U, C, H, W) that has the same row-major order.
#include "engine/ops/dense/dense_cpu.h"

#include <utility>

#include "engine/ops/attributes.h"
#include "engine/ops/channels_cpu.h"
#include "engine/ops/dense/panels_cpu.h"
#include "engine/ops/dnnl_kernel_cpu.h"

namespace tutti {
namespace {

using dnnl::memory;
using Forward = dnnl::inner_product_forward;
using GradInput = dnnl::inner_product_backward_data;
using GradWeights = dnnl::inner_product_backward_weights;

// Descriptions of x and the weight that are tried together.
struct Candidate {
  memory::desc x, w;
};

std::vector<int64_t> Flattened(const TensorType& x) { return {x.dims[0], SampleElements(x)}; }

std::vector<int64_t> WeightDims(const TensorType& x, int64_t units, bool as_images) {
  if (!as_images) return {units, SampleElements(x)};
  std::vector<int64_t> dims = x.dims;
  dims[0] = units;
  return dims;
}

// `w`: the weight's layout where it is decided already; `x_fixed`: x's blocked layout where it has one. Best first; the
// last one, all plain, is always there.
std::vector<Candidate> Candidates(const TensorType& x, int64_t units, const std::optional<CpuLayout>& w,
                                  const std::optional<memory::desc>& x_fixed) {
  std::vector<Candidate> candidates;
  const bool as_images = w ? w->desc.ndims == 4 && x.dims.size() == 4 : x_fixed.has_value();
  if (w && as_images) {
    if (x_fixed) candidates.push_back({*x_fixed, ToDesc(*w)});
    // Without a layout of x the weight's tells: its order of channels is the samples'.
    for (const auto tag : {memory::format_tag::nChw8c, memory::format_tag::nChw16c, memory::format_tag::nhwc}) {
      if (!x_fixed) candidates.push_back({memory::desc(x.dims, memory::data_type::f32, tag), ToDesc(*w)});
    }
    candidates.push_back({AnyDesc(x.dims), ToDesc(*w)});
  } else if (w) {
    candidates.push_back({PlainDesc(Flattened(x)), ToDesc(*w)});
  } else {
    if (x_fixed) candidates.push_back({*x_fixed, AnyDesc(WeightDims(x, units, true))});
    candidates.push_back({PlainDesc(Flattened(x)), AnyDesc(WeightDims(x, units, false))});
  }
  if (w && as_images) {
    candidates.push_back({PlainDesc(x.dims), PlainDesc(WeightDims(x, units, true))});
  } else {
    candidates.push_back({PlainDesc(Flattened(x)), PlainDesc(WeightDims(x, units, false))});
  }
  return candidates;
}

// The layout of x as the graph knows it.
CpuLayout SampleLayout(const memory::desc& desc, const TensorType& x) {
  return desc.data.ndims == static_cast<int>(x.dims.size()) ? FromDesc(desc) : PlainLayout(x);
}

memory::desc MatrixDesc(int64_t rows, int64_t columns) { return PlainDesc({rows, columns}); }

// A weight in panels and the samples' layout that goes with it.
struct PanelChoice {
  PanelShape shape;
  CpuLayout x, w;
};

PanelChoice PanelsFor(const TensorType& x, int64_t units, int64_t channel_block) {
  PanelChoice choice{
      {x.dims[0], units, SampleElements(x)}, PlainLayout(x), PanelWeightLayout({units, SampleElements(x)}, 1)};
  if (channel_block > 1) {
    choice.x = WithChannelLayout({channel_block, x.dims[1] / channel_block, false}, x);
    choice.w = PanelWeightLayout(WeightDims(x, units, true), channel_block);
  }
  return choice;
}

// `w` or the samples' layout `x_layout` decides; nullopt: oneDNN's turn.
std::optional<PanelChoice> ChoosePanels(const TensorType& x, int64_t units, const std::optional<CpuLayout>& w,
                                        const std::optional<CpuLayout>& x_layout) {
  if (units % kPanelUnits != 0) return std::nullopt;
  const auto fits = [&](int64_t block) { return block == 1 || (x.dims.size() == 4 && x.dims[1] % block == 0); };
  if (w) {
    for (const int64_t block : {1, 8, 16}) {
      if (!fits(block)) continue;
      PanelChoice choice = PanelsFor(x, units, block);
      if (SameLayout(choice.w, *w)) return choice;
    }
    return std::nullopt;
  }
  int64_t block = 1;
  if (x_layout && x.dims.size() == 4) {
    const std::optional<ChannelLayout> channels = ChannelLayoutOf(*x_layout, x.dims);
    if (channels && !channels->channels_last && fits(channels->inner)) block = channels->inner;
  }
  PanelChoice choice = PanelsFor(x, units, block);
  if (!SuitsPanels(choice.shape)) return std::nullopt;
  return choice;
}

StatusOr<KernelPlan> PlanOfPanels(const KernelRequest& request, PanelKernel kernel, std::vector<CpuLayout> inputs,
                                  std::vector<CpuLayout> outputs) {
  KernelPlan plan;
  plan.input_layouts = std::move(inputs);
  plan.output_layouts = std::move(outputs);
  plan.scratch_bytes = kernel.scratch_bytes;
  plan.implementation = "tutti panels:avx2";
  plan.kernel = std::move(kernel.kernel);
  return MatchDemandedOutputs(request, std::move(plan));
}

StatusOr<KernelPlan> PlanForward(const KernelRequest& request) {
  const TensorType& x = InputType(request, 0);
  const TensorType& y = OutputType(request, 0);
  const bool has_bias = request.node->inputs.size() == 3;
  if (const auto panels = ChoosePanels(x, y.dims[1], request.inputs[1], request.inputs[0])) {
    std::vector<CpuLayout> inputs{panels->x, panels->w};
    if (has_bias) inputs.push_back(PlainLayout(InputType(request, 2)));
    return PlanOfPanels(request,
                        MakePanelForward(panels->shape, has_bias, HasRelu(*request.node), request.context.threads),
                        std::move(inputs), {PlainLayout(y)});
  }
  const memory::desc dst = MatrixDesc(y.dims[0], y.dims[1]);
  const memory::desc bias = has_bias ? PlainDesc({y.dims[1]}) : memory::desc();
  dnnl::primitive_attr attributes = UserScratchpad();
  if (HasRelu(*request.node)) {
    dnnl::post_ops post;
    post.append_eltwise(1.0f, dnnl::algorithm::eltwise_relu, 0.0f, 0.0f);
    attributes.set_post_ops(post);
  }
  auto kernel = std::make_unique<DnnlKernel>(request.context.threads);
  for (const Candidate& c : Candidates(x, y.dims[1], request.inputs[1], FixedInput(request, 0, 4))) {
    const Forward::primitive_desc pd({dnnl::prop_kind::forward_training, c.x, c.w, bias, dst}, attributes,
                                     kernel->engine(), true);
    if (!IsUsable(pd)) continue;
    std::vector<DnnlArgument> arguments{InputArgument(DNNL_ARG_SRC, pd.src_desc(), 0),
                                        InputArgument(DNNL_ARG_WEIGHTS, pd.weights_desc(), 1),
                                        OutputArgument(DNNL_ARG_DST, dst, 0)};
    KernelPlan plan;
    plan.input_layouts = {SampleLayout(pd.src_desc(), x), FromDesc(pd.weights_desc())};
    if (has_bias) {
      arguments.push_back(InputArgument(DNNL_ARG_BIAS, bias, 2));
      plan.input_layouts.push_back(FromDesc(bias));
    }
    kernel->Add(Forward(pd), pd.scratchpad_desc(), std::move(arguments));
    plan.output_layouts = {FromDesc(dst)};
    plan.scratch_bytes = kernel->scratch_bytes();
    plan.implementation = ImplementationName(pd);
    plan.kernel = std::move(kernel);
    return MatchDemandedOutputs(request, std::move(plan));
  }
  return NoImplementation(*request.node);
}

StatusOr<KernelPlan> PlanGradInput(const KernelRequest& request) {
  const TensorType& dx = OutputType(request, 0);
  const TensorType& dy = InputType(request, 0);
  if (const auto panels = ChoosePanels(dx, dy.dims[1], request.inputs[1], std::nullopt)) {
    return PlanOfPanels(request, MakePanelGradInput(panels->shape, request.context.threads),
                        {PlainLayout(dy), panels->w}, {panels->x});
  }
  const memory::desc diff_dst = MatrixDesc(dy.dims[0], dy.dims[1]);
  auto kernel = std::make_unique<DnnlKernel>(request.context.threads);
  std::vector<Candidate> candidates = Candidates(dx, dy.dims[1], request.inputs[1], std::nullopt);
  // Where the stored layout serves the forward product only, the weight is reordered for this one.
  const Candidate last = candidates.back();
  candidates.insert(candidates.end() - 1, {last.x, AnyDesc(last.w.dims())});
  for (const Candidate& c : candidates) {
    const Forward::primitive_desc hint({dnnl::prop_kind::forward_training, c.x, c.w, diff_dst}, kernel->engine(), true);
    if (hint.get(true) == nullptr) continue;
    const GradInput::primitive_desc pd({c.x, c.w, diff_dst}, UserScratchpad(), kernel->engine(), hint, true);
    if (!IsUsable(pd)) continue;
    kernel->Add(GradInput(pd), pd.scratchpad_desc(),
                {InputArgument(DNNL_ARG_DIFF_DST, diff_dst, 0), InputArgument(DNNL_ARG_WEIGHTS, pd.weights_desc(), 1),
                 OutputArgument(DNNL_ARG_DIFF_SRC, pd.diff_src_desc(), 0)});
    KernelPlan plan;
    plan.input_layouts = {FromDesc(diff_dst), FromDesc(pd.weights_desc())};
    plan.output_layouts = {SampleLayout(pd.diff_src_desc(), dx)};
    plan.scratch_bytes = kernel->scratch_bytes();
    plan.implementation = ImplementationName(pd);
    plan.kernel = std::move(kernel);
    return MatchDemandedOutputs(request, std::move(plan));
  }
  return NoImplementation(*request.node);
}

StatusOr<KernelPlan> PlanGradWeights(const KernelRequest& request) {
  const TensorType& x = InputType(request, 0);
  const TensorType& dy = InputType(request, 1);
  const bool has_bias = request.node->outputs.size() == 2;
  const bool is_demanded = !request.outputs.empty() && request.outputs[0].has_value();
  const CpuLayout weight = is_demanded ? *request.outputs[0] : PlainLayout(OutputType(request, 0));
  if (const auto panels = ChoosePanels(x, dy.dims[1], weight, std::nullopt)) {
    std::vector<CpuLayout> outputs{panels->w};
    if (has_bias) outputs.push_back(PlainLayout(OutputType(request, 1)));
    return PlanOfPanels(request, MakePanelGradWeights(panels->shape, has_bias, request.context.threads),
                        {panels->x, PlainLayout(dy)}, std::move(outputs));
  }
  const memory::desc diff_dst = MatrixDesc(dy.dims[0], dy.dims[1]);
  const memory::desc diff_bias = has_bias ? PlainDesc({dy.dims[1]}) : memory::desc();
  auto kernel = std::make_unique<DnnlKernel>(request.context.threads);
  for (const Candidate& c : Candidates(x, dy.dims[1], weight, FixedInput(request, 0, 4))) {
    const Forward::primitive_desc hint({dnnl::prop_kind::forward_training, c.x, c.w, diff_bias, diff_dst},
                                       kernel->engine(), true);
    if (hint.get(true) == nullptr) continue;
    const GradWeights::primitive_desc pd({c.x, c.w, diff_bias, diff_dst}, UserScratchpad(), kernel->engine(), hint,
                                         true);
    if (!IsUsable(pd)) continue;
    std::vector<DnnlArgument> arguments{InputArgument(DNNL_ARG_SRC, pd.src_desc(), 0),
                                        InputArgument(DNNL_ARG_DIFF_DST, diff_dst, 1),
                                        OutputArgument(DNNL_ARG_DIFF_WEIGHTS, pd.diff_weights_desc(), 0)};
    if (has_bias) arguments.push_back(OutputArgument(DNNL_ARG_DIFF_BIAS, diff_bias, 1));
    kernel->Add(GradWeights(pd), pd.scratchpad_desc(), std::move(arguments));
    KernelPlan plan;
    plan.input_layouts = {SampleLayout(pd.src_desc(), x), FromDesc(diff_dst)};
    plan.output_layouts = {FromDesc(pd.diff_weights_desc())};
    if (has_bias) plan.output_layouts.push_back(FromDesc(diff_bias));
    plan.scratch_bytes = kernel->scratch_bytes();
    plan.implementation = ImplementationName(pd);
    plan.kernel = std::move(kernel);
    return MatchDemandedOutputs(request, std::move(plan));
  }
  return NoImplementation(*request.node);
}

KernelFactory Guarded(StatusOr<KernelPlan> (*plan)(const KernelRequest&)) {
  return [plan](const KernelRequest& request) { return CatchDnnl(*request.node, [&] { return plan(request); }); };
}

}  // namespace

Status RegisterDenseCpu(KernelRegistry* kernels) {
  TUTTI_RETURN_IF_ERROR(kernels->Register("dense", Guarded(PlanForward)));
  TUTTI_RETURN_IF_ERROR(kernels->Register("dense_grad_input", Guarded(PlanGradInput)));
  return kernels->Register("dense_grad_weights", Guarded(PlanGradWeights));
}

}  // namespace tutti
