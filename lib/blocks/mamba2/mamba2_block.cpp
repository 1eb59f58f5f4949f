#include "samba/blocks/mamba2/mamba2_block.h"

#include <algorithm>
#include <string>

#include "samba/blocks/mamba2/mamba2_stages.h"
#include "samba/blocks/mamba_pieces.h"
#include "samba/core/error.h"
#include "samba/kernels/conv.h"

namespace samba {

namespace {

using mamba2::kCells;
using mamba2::kChunk;

void allocate_outputs(Mamba2Call& call, bool keep_states, Workspace& workspace) {
  const Index chunks = call.batch * call.heads() * call.chunks();
  call.dt = workspace.floats(call.batch * call.working_rows() * call.heads());
  call.scores = workspace.floats(call.rows() * kChunk);
  call.dacs = workspace.floats(chunks * kChunk);
  call.decay = workspace.floats(chunks * kChunk);
  if (keep_states || call.chunks() > 1) call.pass_states = workspace.floats(chunks * kCells);
  call.skip = workspace.floats(call.rows() * call.inner());
}

void allocate_stages(Mamba2Call& call, Workspace& workspace) {
  for (float** stage : {&call.x_d, &call.y_diag, &call.y_off, &call.y}) {
    *stage = workspace.floats(call.rows() * call.inner());
  }
  call.chunk_states = workspace.floats(call.batch * call.heads() * call.chunks() * kCells);
}

const Mamba2State* mamba2_state(const BlockState* state) {
  if (state == nullptr) return nullptr;
  const auto* typed = dynamic_cast<const Mamba2State*>(state);
  if (typed == nullptr) refuse_type("the state is not the state of a mamba2 block");
  return typed;
}

// What products read; the other weights are read element by element.
constexpr std::size_t kProducts[] = {static_cast<std::size_t>(Mamba2Weight::in_proj),
                                     static_cast<std::size_t>(Mamba2Weight::out_proj)};

}  // namespace

Mamba2Block::Mamba2Block(Executor& executor, Index d_model, const Mamba2Options& options)
    : executor_(executor),
      d_model_(d_model),
      options_(options),
      weight_specs_(make_weight_specs(d_model, options.conv_shape)),
      weights_(executor, weight_specs_, kProducts) {
  if (d_model < 32 || d_model % 32 != 0) {
    refuse_value("d_model is " + std::to_string(d_model) + "; mamba2 needs a multiple of 32, at least 32");
  }
}

std::vector<WeightSpec> Mamba2Block::make_weight_specs(Index d_model, ConvWeightShape conv_shape) {
  const Index inner = mamba2::d_inner(d_model);
  const Index heads = mamba2::heads(d_model);
  const Index channels = mamba2::conv_channels(d_model);
  return {{"block_norm.weight", {d_model}},
          {"in_proj.weight", {mamba2::projection_width(d_model), d_model}},
          {"conv1d.weight", conv_weight_shape(channels, conv_shape)},
          {"conv1d.bias", {channels}},
          {"dt_bias", {heads}},
          {"A_log", {heads}},
          {"D", {heads}},
          {"norm.weight", {inner}},
          {"out_proj.weight", {d_model, inner}}};
}

void Mamba2Block::bind_weights(std::span<const WeightView> weights) {
  weights_.bind(weights);
  lay_out_weights();
}

const PreparedWeight* Mamba2Block::laid_out(std::size_t weight) const {
  switch (static_cast<Mamba2Weight>(weight)) {
    case Mamba2Weight::in_proj:
      return in_proj_.get();
    case Mamba2Weight::out_proj:
      return out_proj_.get();
    default:
      return nullptr;
  }
}

void Mamba2Block::weights_changed() {
  weights_.refresh();
  lay_out_weights();
}

void Mamba2Block::lay_out_weights() {
  const auto prepare = [&](std::unique_ptr<PreparedWeight>& prepared, Mamba2Weight which) {
    weights_.prepare(static_cast<std::size_t>(which), prepared);
  };
  prepare(in_proj_, Mamba2Weight::in_proj);
  prepare(out_proj_, Mamba2Weight::out_proj);
  const Index heads = mamba2::heads(d_model_);
  if (a_.size() == 0) a_ = DeviceArray<float>(executor_.memory(), heads);
  executor_.mamba1().decay_rates(heads, weight(Mamba2Weight::a_log), a_.data());
}

std::unique_ptr<BlockState> Mamba2Block::allocate_state(Index batch_size, Index /*max_tokens*/) const {
  if (batch_size < 1) refuse_value("batch_size is " + std::to_string(batch_size) + "; it must be positive");
  return std::make_unique<Mamba2State>(executor_.memory(), d_model_, batch_size);
}

void Mamba2Block::check_call(const BlockState* state, Index /*length*/) const {
  const Mamba2State* typed = mamba2_state(state);
  if (typed == nullptr) return;
  if (typed->d_model() != d_model_) {
    refuse_value("conv_window of the state has shape " + shape_text(typed->piece_shape(Mamba2Piece::conv_window)) +
                 "; the block's d_model is " + std::to_string(d_model_));
  }
  const Index buffered = typed->buffered_tokens();
  if (buffered < 0 || buffered >= kChunk) {
    refuse_value("buffered_tokens must be in [0, 256), got " + std::to_string(buffered));
  }
}

Mamba2Call Mamba2Block::make_call(Index batch, Index length) const {
  Mamba2Call call;
  call.batch = batch;
  call.tokens = length;
  call.d_model = d_model_;
  call.a = a_.data();
  call.dt_bias = weight(Mamba2Weight::dt_bias);
  call.d = weight(Mamba2Weight::d);
  call.dt_low = options_.dt_low;
  call.dt_high = options_.dt_high;
  return call;
}

void Mamba2Block::project_in(Mamba2Activations& run, const float* x, Workspace& workspace) {
  const Index rows = run.call.rows();
  run.norm_sumsq = workspace.floats(rows);
  run.normed = workspace.floats(rows * d_model_);
  executor_.norm().mamba_norm_forward(rows, d_model_, kMamba2NormEpsilon, x, weight(Mamba2Weight::block_norm),
                                      run.normed, run.norm_sumsq);
  float* in_proj = workspace.floats(rows * run.call.width());
  run.call.in_proj = in_proj;
  executor_.linear().linear(*in_proj_, rows, run.normed, in_proj);
}

// Convolution and scan, from in_proj to gate.
void Mamba2Block::mix(Mamba2Activations& run, Mamba2State* state, Keep keep, Workspace& workspace) {
  Mamba2Call& call = run.call;
  if (state != nullptr) {
    call.buffered = state->buffered_tokens();
    call.buffer_xbc = state->data(Mamba2Piece::buffer_xbc);
    call.buffer_dt = state->data(Mamba2Piece::buffer_dtraw);
    call.h = state->data(Mamba2Piece::h);
  }
  ConvCall conv;
  conv.batch = call.batch;
  conv.tokens = call.tokens;
  conv.channels = call.channels();
  conv.x = call.in_proj + call.inner();
  conv.x_stride = call.width();
  conv.weight = weight(Mamba2Weight::conv);
  conv.bias = weight(Mamba2Weight::conv_bias);
  if (state != nullptr) conv.window = state->data(Mamba2Piece::conv_window);
  float* x_bc = workspace.floats(call.rows() * call.channels());
  call.x_bc = x_bc;
  if (keep != Keep::nothing) run.conv = workspace.floats(call.rows() * call.channels());
  executor_.conv().conv_forward(conv, run.conv, x_bc);
  if (state != nullptr) executor_.conv().update_window(conv, state->data(Mamba2Piece::conv_window));

  allocate_outputs(call, keep != Keep::nothing, workspace);
  if (keep == Keep::for_stages) allocate_stages(call, workspace);
  executor_.mamba2().scan(call);
}

Mamba2Activations Mamba2Block::run_forward(Index batch, Index length, const float* x, Mamba2State* state, float* h_last,
                                           Keep keep, Workspace& workspace) {
  Mamba2Activations run;
  run.call = make_call(batch, length);
  run.call.h_last = h_last;
  project_in(run, x, workspace);
  run.call.gate = workspace.floats(run.call.rows() * run.call.inner());
  mix(run, state, keep, workspace);
  normalize_gate(run, workspace);
  return run;
}

void Mamba2Block::normalize_gate(Mamba2Activations& run, Workspace& workspace) {
  const Index rows = run.call.rows(), inner = run.call.inner();
  run.gate_sumsq = workspace.floats(rows);
  run.gate_normed = workspace.floats(rows * inner);
  executor_.norm().mamba_norm_forward(rows, inner, kMamba2NormEpsilon, run.call.gate, weight(Mamba2Weight::norm),
                                      run.gate_normed, run.gate_sumsq);
}

void Mamba2Block::project_out(Mamba2Activations& run, const float* x, float* y, Workspace& workspace) {
  const Index rows = run.call.rows();
  run.projected = workspace.floats(rows * d_model_);
  executor_.linear().linear(*out_proj_, rows, run.gate_normed, run.projected);
  executor_.elementwise().add(rows * d_model_, x, run.projected, y);
}

void Mamba2Block::step_rows(std::span<BlockState* const> states, const float* x, float* y, Workspace& workspace) {
  if (reports_wanted_) return Block::step_rows(states, x, y, workspace);
  for (const BlockState* state : states) check_call(state, 1);
  const Workspace::Scope scope(workspace);
  Mamba2Activations run;
  run.call = make_call(static_cast<Index>(states.size()), 1);
  project_in(run, x, workspace);
  const Index inner = run.call.inner();
  run.call.gate = workspace.floats(run.call.rows() * inner);
  for (Index row = 0; row < run.call.batch; ++row) {
    const Workspace::Scope row_scope(workspace);
    auto& state = static_cast<Mamba2State&>(*states[static_cast<std::size_t>(row)]);
    Mamba2Activations one;
    one.call = make_call(1, 1);
    one.call.in_proj = run.call.in_proj + row * run.call.width();
    one.call.gate = run.call.gate + row * inner;
    mix(one, &state, Keep::nothing, workspace);
    store_open_chunk(one.call, state);
  }
  normalize_gate(run, workspace);
  project_out(run, x, y, workspace);
}

void Mamba2Block::forward(Index batch, Index length, const float* x, float* y, BlockState* state, Workspace& workspace,
                          StageRecorder* stages) {
  check_call(state, length);
  auto* typed = static_cast<Mamba2State*>(state);
  if (typed != nullptr && typed->batch_size() != batch) {
    refuse_value("conv_window of the state has shape " + shape_text(typed->piece_shape(Mamba2Piece::conv_window)) +
                 "; the call has a batch of " + std::to_string(batch));
  }
  if (batch != 1 || typed == nullptr || stages != nullptr) {
    return run_call(batch, length, x, y, typed, workspace, stages);
  }
  over_pieces(length, typed->buffered_tokens(), [&](Index first, Index count) {
    run_call(1, count, x + first * d_model_, y + first * d_model_, typed, workspace, nullptr);
  });
}

void Mamba2Block::run_call(Index batch, Index length, const float* x, float* y, Mamba2State* state,
                           Workspace& workspace, StageRecorder* stages) {
  Workspace::Scope scope(workspace);
  float* h_last = reports_wanted_ ? report_h_last(batch) : nullptr;
  Mamba2Activations run =
      run_forward(batch, length, x, state, h_last, stages == nullptr ? Keep::nothing : Keep::for_stages, workspace);
  project_out(run, x, y, workspace);
  if (stages != nullptr) record_mamba2_forward(run, executor_, workspace, *stages);
  if (state != nullptr) store_open_chunk(run.call, *state);
}

// Spec 31 section 3, after the call: the last n working rows become rows 0..n-1 of the buffers. While the open chunk is
// the first its buffered rows stay where they are; a later chunk holds new rows only.
void Mamba2Block::store_open_chunk(const Mamba2Call& call, Mamba2State& state) {
  const Index keep = call.working_rows() % kChunk;
  const Index first = call.working_rows() < kChunk ? call.buffered : 0;  // row of the buffers
  const Index source = call.tokens - (keep - first);                     // row of this call
  float* const xbc = state.data(Mamba2Piece::buffer_xbc);
  float* const dt = state.data(Mamba2Piece::buffer_dtraw);
  const float* const raw_dt = call.in_proj + mamba2::dt_column(call.d_model);
  for (Index b = 0; b < call.batch && keep > first; ++b) {
    const Index to = b * kChunk + first;
    const Index from = b * call.tokens + source;
    executor_.memory().copy(xbc + to * call.channels(), call.x_bc + from * call.channels(),
                            static_cast<std::size_t>((keep - first) * call.channels()) * sizeof(float));
    executor_.elementwise().copy_columns(keep - first, call.heads(), raw_dt + from * call.width(), call.width(),
                                         dt + to * call.heads(), call.heads());
  }
  state.set_buffered_tokens(keep);
}

float* Mamba2Block::report_h_last(Index batch) {
  const Index cells = batch * mamba2::heads(d_model_) * kCells;
  if (report_h_.size() < cells) report_h_ = DeviceArray<float>(executor_.memory(), cells);
  reported_batch_ = batch;
  return report_h_.data();
}

ArrayMap Mamba2Block::reports() const {
  ArrayMap result;
  if (reported_batch_ == 0) return result;
  Array h_last = Array::zeros({reported_batch_, mamba2::heads(d_model_), mamba2::kHeadDim, mamba2::kStateSize});
  executor_.memory().copy_to_host(h_last.data(), report_h_.data(), h_last.byte_size());
  result.emplace("h_last", std::move(h_last));
  return result;
}

}  // namespace samba
