#include "samba/blocks/mamba3/mamba3_block.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "samba/blocks/mamba3/mamba3_stages.h"
#include "samba/blocks/mamba_pieces.h"
#include "samba/core/error.h"

namespace samba {

namespace {

using mamba3::kAngles;
using mamba3::kChunk;
using mamba3::kHeadDim;
using mamba3::kStateSize;

std::size_t float_bytes(Index count) { return static_cast<std::size_t>(count) * sizeof(float); }

void allocate_outputs(Mamba3Call& call, Workspace& workspace) {
  const Index rows = call.new_rows();
  const Index cells = rows * call.heads();
  const Index working = call.batch * call.working_rows() * call.heads();
  call.a = workspace.floats(cells);
  call.b_normed = workspace.floats(rows * kStateSize);
  call.c_normed = workspace.floats(rows * kStateSize);
  call.angle_rate = workspace.floats(rows * kAngles);
  call.current.q = workspace.floats(cells * kStateSize);
  call.current.k = workspace.floats(cells * kStateSize);
  call.current.dt = workspace.floats(cells);
  call.current.sigma = workspace.floats(cells);
  call.current.adt = workspace.floats(cells);
  call.current.rows = call.tokens;
  call.angles = workspace.floats(cells * kAngles);
  call.qk_chain = workspace.floats(cells);
  call.gamma = workspace.floats(working);
  call.scale = workspace.floats(working);
  call.k_scaled = workspace.floats(working * kStateSize);
  call.skip = workspace.floats(cells * kHeadDim);
}

void allocate_kept(Mamba3Call& call, Workspace& workspace) {
  const Index chunks = call.batch * call.heads() * call.chunks();
  call.dacs = workspace.floats(chunks * kChunk);
  call.decay = workspace.floats(chunks * kChunk * kChunk);
  call.scores = workspace.floats(chunks * kChunk * kChunk);
  call.pass_states = workspace.floats(chunks * kHeadDim * kStateSize);
}

void allocate_stages(Mamba3Call& call, Workspace& workspace) {
  const Index cells = call.new_rows() * call.heads();
  call.qkdot = workspace.floats(cells);
  call.y_intra = workspace.floats(cells * kHeadDim);
  call.y_state = workspace.floats(cells * kHeadDim);
}

void bind_state(Mamba3Call& call, Mamba3State& state) {
  call.buffered = state.buffered_tokens();
  call.head_start_known = state.take_head_start();
  call.head_start = state.head_start();
  call.theta = state.data(Mamba3Piece::theta);
  call.h = state.data(Mamba3Piece::h);
  call.buffer = state.buffer();
  if (state.pending()) {
    call.pending_k = state.data(Mamba3Piece::pending_k);
    call.pending_v = state.data(Mamba3Piece::pending_v);
  }
}

void check_state(const Mamba3State& state) {
  const Index buffered = state.buffered_tokens();
  if (buffered < 0 || buffered > kChunk) {
    refuse_value("buffered_tokens is " + std::to_string(buffered) + "; the range is 0..64");
  }
  if (state.pending() && buffered != 0) {
    refuse_value("set_input_states in mid-sequence: input states are pending, but buffered_tokens is " +
                 std::to_string(buffered) + "; they are accepted before the first token only");
  }
}

const Mamba3State* mamba3_state(const BlockState* state) {
  if (state == nullptr) return nullptr;
  const auto* typed = dynamic_cast<const Mamba3State*>(state);
  if (typed == nullptr) refuse_type("the state is not the state of a mamba3 block");
  return typed;
}

// The buffer rows behind those that a call leaves in use. They keep their bytes (spec 40 section 6.1), also in a call
// that runs in pieces, each of which fills the buffer.
class StaleRows {
 public:
  StaleRows(Mamba3State& state, Index length, Memory& memory, Workspace& workspace) {
    if (state.buffered_tokens() % kChunk + length <= kMambaPiece) return;
    const Index keep = (state.buffered_tokens() + length - 1) % kChunk + 1;
    const Index heads = mamba3::heads(state.d_model());
    const Mamba3Rows rows = state.buffer();
    const std::pair<float*, Index> pieces[] = {{rows.q, heads * kStateSize}, {rows.k, heads * kStateSize},
                                               {rows.v, heads * kHeadDim},   {rows.dt, heads},
                                               {rows.sigma, heads},          {rows.adt, heads}};
    for (std::size_t i = 0; i < runs_.size() && keep < kChunk; ++i) {
      const auto [first, width] = pieces[i];
      const Index count = (kChunk - keep) * width;
      runs_[i] = {first + keep * width, workspace.floats(count), float_bytes(count)};
      memory.copy(runs_[i].kept, runs_[i].rows, runs_[i].bytes);
    }
  }
  void put_back(Memory& memory) const {
    for (const Run& run : runs_) {
      if (run.bytes > 0) memory.copy(run.rows, run.kept, run.bytes);
    }
  }

 private:
  struct Run {
    float* rows = nullptr;
    float* kept = nullptr;
    std::size_t bytes = 0;
  };
  std::array<Run, 6> runs_;
};

// What products read; the other weights are read element by element.
constexpr std::size_t kProducts[] = {static_cast<std::size_t>(Mamba3Weight::in_proj),
                                     static_cast<std::size_t>(Mamba3Weight::out_proj)};

}  // namespace

Mamba3Block::Mamba3Block(Executor& executor, Index d_model, Gradient gradient)
    : executor_(executor),
      d_model_(d_model),
      gradient_(gradient),
      weight_specs_(make_weight_specs(d_model)),
      weights_(executor, weight_specs_, kProducts) {
  if (d_model < 32 || d_model % 32 != 0) {
    refuse_value("d_model is " + std::to_string(d_model) + "; mamba3 needs a multiple of 32, at least 32");
  }
}

std::vector<WeightSpec> Mamba3Block::make_weight_specs(Index d_model) {
  const Index heads = mamba3::heads(d_model);
  return {{"block_norm.weight", {d_model}},
          {"in_proj.weight", {mamba3::projection_width(d_model), d_model}},
          {"dt_bias", {heads}},
          {"B_norm.weight", {kStateSize}},
          {"C_norm.weight", {kStateSize}},
          {"B_bias", {heads, kStateSize}},
          {"C_bias", {heads, kStateSize}},
          {"D", {heads}},
          {"out_proj.weight", {d_model, mamba3::d_inner(d_model)}}};
}

void Mamba3Block::bind_weights(std::span<const WeightView> weights) {
  weights_.bind(weights);
  lay_out_weights();
}

const PreparedWeight* Mamba3Block::laid_out(std::size_t weight) const {
  switch (static_cast<Mamba3Weight>(weight)) {
    case Mamba3Weight::in_proj:
      return in_proj_.get();
    case Mamba3Weight::out_proj:
      return out_proj_.get();
    default:
      return nullptr;
  }
}

void Mamba3Block::weights_changed() {
  weights_.refresh();
  lay_out_weights();
}

void Mamba3Block::lay_out_weights() {
  const auto prepare = [&](std::unique_ptr<PreparedWeight>& prepared, Mamba3Weight which) {
    weights_.prepare(static_cast<std::size_t>(which), prepared);
  };
  prepare(in_proj_, Mamba3Weight::in_proj);
  prepare(out_proj_, Mamba3Weight::out_proj);
}

std::unique_ptr<BlockState> Mamba3Block::allocate_state(Index batch_size, Index /*max_tokens*/) const {
  if (batch_size < 1) refuse_value("batch_size is " + std::to_string(batch_size) + "; it must be at least 1");
  return std::make_unique<Mamba3State>(executor_.memory(), d_model_, batch_size, executor_.mamba3().head_start_size());
}

void Mamba3Block::check_call(const BlockState* state, Index /*length*/) const {
  const Mamba3State* typed = mamba3_state(state);
  if (typed == nullptr) return;
  if (typed->d_model() != d_model_) {
    refuse_value("theta of the state has shape " + shape_text(typed->piece_shape(Mamba3Piece::theta)) +
                 "; the block's d_model is " + std::to_string(d_model_));
  }
  check_state(*typed);
}

Mamba3Call Mamba3Block::make_call(Index batch, Index length) const {
  Mamba3Call call;
  call.batch = batch;
  call.tokens = length;
  call.d_model = d_model_;
  call.dt_bias = weight(Mamba3Weight::dt_bias);
  call.b_norm_weight = weight(Mamba3Weight::b_norm);
  call.c_norm_weight = weight(Mamba3Weight::c_norm);
  call.b_bias = weight(Mamba3Weight::b_bias);
  call.c_bias = weight(Mamba3Weight::c_bias);
  call.d = weight(Mamba3Weight::d);
  return call;
}

void Mamba3Block::project_in(Mamba3Activations& run, const float* x, Workspace& workspace) {
  const Index rows = run.call.new_rows();
  run.norm_sumsq = workspace.floats(rows);
  run.normed = workspace.floats(rows * d_model_);
  run.in_proj = workspace.floats(rows * mamba3::projection_width(d_model_));
  executor_.norm().mamba_norm_forward(rows, d_model_, kMamba3NormEpsilon, x, weight(Mamba3Weight::block_norm),
                                      run.normed, run.norm_sumsq);
  executor_.linear().linear(*in_proj_, rows, run.normed, run.in_proj);
}

// From in_proj to gate.
void Mamba3Block::mix(Mamba3Call& call, float* in_proj, Mamba3State* state, Keep keep, Workspace& workspace) {
  call.in_proj = in_proj;
  if (state != nullptr) bind_state(call, *state);
  allocate_outputs(call, workspace);
  call.current.v = in_proj + mamba3::columns(d_model_).x;
  call.current.v_stride = mamba3::projection_width(d_model_);
  if (keep != Keep::nothing) allocate_kept(call, workspace);
  if (keep == Keep::for_stages) allocate_stages(call, workspace);

  Mamba3Kernels& kernels = executor_.mamba3();
  kernels.prepare_tokens(call);
  kernels.accumulate_angles(call);
  kernels.rotate(call);
  kernels.weigh(call);
  kernels.scan(call);
}

Mamba3Activations Mamba3Block::run_forward(Index batch, Index length, const float* x, Mamba3State* state, float* h_last,
                                           Keep keep, Workspace& workspace) {
  Mamba3Activations run;
  run.call = make_call(batch, length);
  run.call.h_last = h_last;
  project_in(run, x, workspace);
  run.call.gate = workspace.floats(run.call.new_rows() * mamba3::d_inner(d_model_));
  mix(run.call, run.in_proj, state, keep, workspace);
  return run;
}

void Mamba3Block::project_out(Mamba3Activations& run, const float* x, float* y, Workspace& workspace) {
  const Index rows = run.call.new_rows();
  run.projected = workspace.floats(rows * d_model_);
  executor_.linear().linear(*out_proj_, rows, run.call.gate, run.projected);
  executor_.elementwise().add(rows * d_model_, x, run.projected, y);
}

void Mamba3Block::step_rows(std::span<BlockState* const> states, const float* x, float* y, Workspace& workspace) {
  if (reports_wanted_) return Block::step_rows(states, x, y, workspace);
  for (const BlockState* state : states) check_call(state, 1);
  const Workspace::Scope scope(workspace);
  Mamba3Activations run;
  run.call = make_call(static_cast<Index>(states.size()), 1);
  project_in(run, x, workspace);
  const Index inner = mamba3::d_inner(d_model_);
  run.call.gate = workspace.floats(run.call.new_rows() * inner);
  for (Index row = 0; row < run.call.batch; ++row) {
    const Workspace::Scope row_scope(workspace);
    auto& state = static_cast<Mamba3State&>(*states[static_cast<std::size_t>(row)]);
    Mamba3Call one = make_call(1, 1);
    one.gate = run.call.gate + row * inner;
    mix(one, run.in_proj + row * mamba3::projection_width(d_model_), &state, Keep::nothing, workspace);
    store_last_chunk(one, state);
  }
  project_out(run, x, y, workspace);
}

void Mamba3Block::forward(Index batch, Index length, const float* x, float* y, BlockState* state, Workspace& workspace,
                          StageRecorder* stages) {
  check_call(state, length);
  auto* typed = static_cast<Mamba3State*>(state);
  if (typed != nullptr && typed->batch_size() != batch) {
    refuse_value("theta of the state has shape " + shape_text(typed->piece_shape(Mamba3Piece::theta)) +
                 "; the call has a batch of " + std::to_string(batch));
  }
  if (batch != 1 || typed == nullptr || stages != nullptr) {
    return run_call(batch, length, x, y, typed, workspace, stages);
  }
  Workspace::Scope scope(workspace);
  const StaleRows stale(*typed, length, executor_.memory(), workspace);
  over_pieces(length, typed->buffered_tokens() % kChunk, [&](Index first, Index count) {
    run_call(1, count, x + first * d_model_, y + first * d_model_, typed, workspace, nullptr);
  });
  stale.put_back(executor_.memory());
}

void Mamba3Block::run_call(Index batch, Index length, const float* x, float* y, Mamba3State* state,
                           Workspace& workspace, StageRecorder* stages) {
  Workspace::Scope scope(workspace);
  float* h_last = reports_wanted_ ? report_h_last(batch) : nullptr;
  Mamba3Activations run =
      run_forward(batch, length, x, state, h_last, stages == nullptr ? Keep::nothing : Keep::for_stages, workspace);
  project_out(run, x, y, workspace);
  if (stages != nullptr) record_mamba3_forward(run, executor_.memory(), workspace, *stages);
  if (reports_wanted_) store_reports(run.call);
  if (state != nullptr) store_last_chunk(run.call, *state);
}

// Spec 40 section 6.1. Rows that stay in the last chunk lie where they belong and keep their bytes: a chunk holds
// buffered rows only while it is the first, and then row t of the sequence is row t of the buffer.
void Mamba3Block::store_last_chunk(const Mamba3Call& call, Mamba3State& state) {
  Memory& memory = executor_.memory();
  const Index heads = call.heads();
  const Index inner = mamba3::d_inner(d_model_);
  const Index chunk_start = (call.chunks() - 1) * kChunk;
  const Index keep = call.working_rows() - chunk_start;
  const Index first = std::max<Index>(call.buffered - chunk_start, 0);  // row of the buffer
  const Index source = chunk_start + first - call.buffered;             // row of this call
  const Mamba3Rows& to = call.buffer;
  const Mamba3Rows& from = call.current;
  for (Index b = 0; b < call.batch; ++b) {
    const Index to_row = b * to.rows + first;
    const Index from_row = b * from.rows + source;
    const auto copy_rows = [&](float* target, const float* values, Index width) {
      memory.copy(target + to_row * width, values + from_row * width, float_bytes((keep - first) * width));
    };
    copy_rows(to.q, from.q, heads * kStateSize);
    copy_rows(to.k, from.k, heads * kStateSize);
    copy_rows(to.dt, from.dt, heads);
    copy_rows(to.sigma, from.sigma, heads);
    copy_rows(to.adt, from.adt, heads);
    for (Index i = 0; i < keep - first; ++i) {
      memory.copy(to.v + (to_row + i) * to.v_stride, from.v + (from_row + i) * from.v_stride, float_bytes(inner));
    }
  }
  state.finish_call(keep, executor_.mamba3().leaves_head_start(call));
}

float* Mamba3Block::report_h_last(Index batch) {
  const Index heads = mamba3::heads(d_model_);
  if (report_h_.size() < batch * heads * kHeadDim * kStateSize) {
    Memory& memory = executor_.memory();
    report_h_ = DeviceArray<float>(memory, batch * heads * kHeadDim * kStateSize);
    report_k_ = DeviceArray<float>(memory, batch * heads * kStateSize);
    report_v_ = DeviceArray<float>(memory, batch * heads * kHeadDim);
    report_theta_ = DeviceArray<float>(memory, batch * heads * kAngles);
  }
  return report_h_.data();
}

void Mamba3Block::store_reports(const Mamba3Call& call) {
  Memory& memory = executor_.memory();
  const Index keys = call.heads() * kStateSize;
  const Index values = call.heads() * kHeadDim;
  const Index angles = call.heads() * kAngles;
  for (Index b = 0; b < call.batch; ++b) {
    const Index last = (b + 1) * call.tokens - 1;
    memory.copy(report_k_.data() + b * keys, call.current.k + last * keys, float_bytes(keys));
    memory.copy(report_v_.data() + b * values, call.current.v + last * call.current.v_stride, float_bytes(values));
    memory.copy(report_theta_.data() + b * angles, call.angles + last * angles, float_bytes(angles));
  }
  reported_batch_ = call.batch;
}

ArrayMap Mamba3Block::reports() const {
  ArrayMap result;
  if (reported_batch_ == 0) return result;
  const Index heads = mamba3::heads(d_model_);
  const auto add = [&](const char* name, Shape shape, const DeviceArray<float>& array) {
    Array host = Array::zeros(std::move(shape));
    executor_.memory().copy_to_host(host.data(), array.data(), host.byte_size());
    result.emplace(name, std::move(host));
  };
  add("h_last", {reported_batch_, heads, kHeadDim, kStateSize}, report_h_);
  add("k_last", {reported_batch_, heads, kStateSize}, report_k_);
  add("v_last", {reported_batch_, heads, kHeadDim}, report_v_);
  add("theta_last", {reported_batch_, heads, kAngles}, report_theta_);
  return result;
}

}  // namespace samba
