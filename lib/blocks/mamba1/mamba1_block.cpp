#include "samba/blocks/mamba1/mamba1_block.h"

#include <algorithm>
#include <string>

#include "samba/blocks/mamba_pieces.h"
#include "samba/core/error.h"

namespace samba {

namespace {

const Mamba1State* mamba1_state(const BlockState* state) {
  if (state == nullptr) return nullptr;
  const auto* typed = dynamic_cast<const Mamba1State*>(state);
  if (typed == nullptr) refuse_type("the state is not the state of a mamba1 block");
  return typed;
}

// What products read; the other weights are read element by element.
constexpr std::size_t kProducts[] = {
    static_cast<std::size_t>(Mamba1Weight::in_proj), static_cast<std::size_t>(Mamba1Weight::x_proj),
    static_cast<std::size_t>(Mamba1Weight::dt_proj), static_cast<std::size_t>(Mamba1Weight::out_proj)};

}  // namespace

Mamba1Block::Mamba1Block(Executor& executor, Index d_model, ConvWeightShape conv_shape)
    : executor_(executor),
      d_model_(d_model),
      weight_specs_(make_weight_specs(d_model, conv_shape)),
      weights_(executor, weight_specs_, kProducts) {
  if (d_model < 1) refuse_value("d_model is " + std::to_string(d_model) + "; mamba1 needs at least 1");
}

std::vector<WeightSpec> Mamba1Block::make_weight_specs(Index d_model, ConvWeightShape conv_shape) {
  const Index inner = mamba1::d_inner(d_model);
  const Index rank = mamba1::dt_rank(d_model);
  return {{"norm.weight", {d_model}},
          {"in_proj.weight", {2 * inner, d_model}},
          {"conv1d.weight", conv_weight_shape(inner, conv_shape)},
          {"conv1d.bias", {inner}},
          {"x_proj.weight", {mamba1::x_proj_width(d_model), inner}},
          {"dt_proj.weight", {inner, rank}},
          {"dt_proj.bias", {inner}},
          {"A_log", {inner, mamba1::kStates}},
          {"D", {inner}},
          {"out_proj.weight", {d_model, inner}}};
}

void Mamba1Block::bind_weights(std::span<const WeightView> weights) {
  weights_.bind(weights);
  lay_out_weights();
}

const PreparedWeight* Mamba1Block::laid_out(std::size_t weight) const {
  switch (static_cast<Mamba1Weight>(weight)) {
    case Mamba1Weight::in_proj:
      return in_proj_.get();
    case Mamba1Weight::x_proj:
      return x_proj_.get();
    case Mamba1Weight::dt_proj:
      return dt_proj_.get();
    case Mamba1Weight::out_proj:
      return out_proj_.get();
    default:
      return nullptr;
  }
}

void Mamba1Block::weights_changed() {
  weights_.refresh();
  lay_out_weights();
}

void Mamba1Block::lay_out_weights() {
  const auto prepare = [&](std::unique_ptr<PreparedWeight>& prepared, Mamba1Weight which) {
    weights_.prepare(static_cast<std::size_t>(which), prepared);
  };
  prepare(in_proj_, Mamba1Weight::in_proj);
  prepare(x_proj_, Mamba1Weight::x_proj);
  prepare(dt_proj_, Mamba1Weight::dt_proj);
  prepare(out_proj_, Mamba1Weight::out_proj);
  const Index rates = mamba1::d_inner(d_model_) * mamba1::kStates;
  if (a_.size() == 0) a_ = DeviceArray<float>(executor_.memory(), rates);
  executor_.mamba1().decay_rates(rates, weight(Mamba1Weight::a_log), a_.data());
}

std::unique_ptr<BlockState> Mamba1Block::allocate_state(Index batch_size, Index /*max_tokens*/) const {
  if (batch_size < 1) refuse_value("batch_size is " + std::to_string(batch_size) + "; it must be positive");
  return std::make_unique<Mamba1State>(executor_.memory(), d_model_, batch_size);
}

void Mamba1Block::check_call(const BlockState* state, Index /*length*/) const {
  const Mamba1State* typed = mamba1_state(state);
  if (typed == nullptr || typed->d_model() == d_model_) return;
  refuse_value("conv_window of the state has shape " + shape_text(typed->piece_shape(Mamba1Piece::conv_window)) +
               "; the block's d_model is " + std::to_string(d_model_));
}

Mamba1Activations Mamba1Block::run_forward(Index batch, Index length, const float* x,
                                           std::span<BlockState* const> states, Keep keep, Workspace& workspace) {
  Mamba1Activations run;
  Mamba1Call& call = run.call;
  call.batch = batch;
  call.tokens = length;
  call.d_model = d_model_;
  call.a = a_.data();
  call.dt_bias = weight(Mamba1Weight::dt_bias);
  call.d = weight(Mamba1Weight::d);
  const Index rows = call.rows();
  // Products read their weights once for all rows; what goes on from a state runs state by state.
  const auto parts = static_cast<Index>(states.size());
  const Index part_rows = rows / parts;
  const auto state_of = [&](Index part) { return static_cast<Mamba1State*>(states[static_cast<std::size_t>(part)]); };
  const Index inner = call.channels();
  LinearKernels& linear = executor_.linear();

  run.norm_sumsq = workspace.floats(rows);
  run.normed = workspace.floats(rows * d_model_);
  executor_.norm().mamba_norm_forward(rows, d_model_, kMamba1NormEpsilon, x, weight(Mamba1Weight::norm), run.normed,
                                      run.norm_sumsq);
  float* in_proj = workspace.floats(rows * 2 * inner);
  call.in_proj = in_proj;
  linear.linear(*in_proj_, rows, run.normed, in_proj);

  float* u = workspace.floats(rows * inner);
  call.u = u;
  if (keep != Keep::nothing) run.conv = workspace.floats(rows * inner);
  for (Index part = 0; part < parts; ++part) {
    float* const window = state_of(part) == nullptr ? nullptr : state_of(part)->data(Mamba1Piece::conv_window);
    const Index first = part * part_rows;
    const ConvCall conv{batch / parts,
                        length,
                        inner,
                        in_proj + first * 2 * inner,
                        2 * inner,
                        weight(Mamba1Weight::conv),
                        weight(Mamba1Weight::conv_bias),
                        window};
    executor_.conv().conv_forward(conv, run.conv, u + first * inner);
    if (window != nullptr) executor_.conv().update_window(conv, window);
  }

  float* x_proj = workspace.floats(rows * call.x_width());
  call.x_proj = x_proj;
  linear.linear(*x_proj_, rows, u, x_proj);
  run.dt_low = workspace.floats(rows * call.dt_rank());
  executor_.elementwise().copy_columns(rows, call.dt_rank(), x_proj, call.x_width(), run.dt_low, call.dt_rank());
  float* dt_proj = workspace.floats(rows * inner);
  call.dt_proj = dt_proj;
  linear.linear(*dt_proj_, rows, run.dt_low, dt_proj);

  call.gate = workspace.floats(rows * inner);
  if (keep != Keep::nothing) {
    call.delta = workspace.floats(rows * inner);
    call.skip = workspace.floats(rows * inner);
    call.kept = workspace.floats(batch * call.segments() * inner * mamba1::kStates);
  }
  if (keep == Keep::for_stages) call.y = workspace.floats(rows * inner);
  for (Index part = 0; part < parts; ++part) {
    Mamba1Call one = call;
    const Index first = part * part_rows;
    one.batch = batch / parts;
    one.in_proj += first * 2 * inner;
    one.u += first * inner;
    one.x_proj += first * call.x_width();
    one.dt_proj += first * inner;
    one.gate += first * inner;
    if (state_of(part) != nullptr) one.h = state_of(part)->data(Mamba1Piece::h);
    executor_.mamba1().scan(one);
  }
  return run;
}

void Mamba1Block::forward(Index batch, Index length, const float* x, float* y, BlockState* state, Workspace& workspace,
                          StageRecorder* stages) {
  check_call(state, length);
  auto* typed = static_cast<Mamba1State*>(state);
  if (typed != nullptr && typed->batch_size() != batch) {
    refuse_value("conv_window of the state has shape " + shape_text(typed->piece_shape(Mamba1Piece::conv_window)) +
                 "; the call has a batch of " + std::to_string(batch));
  }
  if (batch != 1 || typed == nullptr || stages != nullptr) {
    return run_call(batch, length, x, y, {&state, 1}, workspace, stages);
  }
  over_pieces(length, 0, [&](Index first, Index count) {
    run_call(1, count, x + first * d_model_, y + first * d_model_, {&state, 1}, workspace, nullptr);
  });
}

void Mamba1Block::step_rows(std::span<BlockState* const> states, const float* x, float* y, Workspace& workspace) {
  for (const BlockState* state : states) check_call(state, 1);
  run_call(static_cast<Index>(states.size()), 1, x, y, states, workspace, nullptr);
}

void Mamba1Block::run_call(Index batch, Index length, const float* x, float* y, std::span<BlockState* const> states,
                           Workspace& workspace, StageRecorder* stages) {
  Workspace::Scope scope(workspace);
  const Index rows = batch * length;
  Mamba1Activations run =
      run_forward(batch, length, x, states, stages == nullptr ? Keep::nothing : Keep::for_stages, workspace);
  run.projected = workspace.floats(rows * d_model_);
  executor_.linear().linear(*out_proj_, rows, run.call.gate, run.projected);
  executor_.elementwise().add(rows * d_model_, x, run.projected, y);
  if (stages != nullptr) record_forward(run, *stages);
}

void Mamba1Block::record_forward(const Mamba1Activations& run, StageRecorder& stages) const {
  const Mamba1Call& call = run.call;
  const Index rows = call.rows();
  const Index inner = call.channels();
  stages.record("norm.sumsq", {rows}, run.norm_sumsq);
  stages.record("norm.out", {rows, d_model_}, run.normed);
  stages.record("in_proj.out", {rows, 2 * inner}, call.in_proj);
  stages.record("A.out", {inner, mamba1::kStates}, call.a);
  stages.record("conv.out", {rows, inner}, run.conv);
  stages.record("silu.out", {rows, inner}, call.u);
  stages.record("x_proj.out", {rows, call.x_width()}, call.x_proj);
  stages.record("dt_proj.out", {rows, inner}, call.dt_proj);
  stages.record("softplus.out", {rows, inner}, call.delta);
  stages.record("scan.y", {rows, inner}, call.y);
  stages.record("skip.out", {rows, inner}, call.skip);
  stages.record("gate.out", {rows, inner}, call.gate);
  stages.record("out_proj.out", {rows, d_model_}, run.projected);
}

}  // namespace samba
