// A decode step of Mamba-3 in the open chunk, or opening one (spec 40 section 11): the new row alone.
//
//   1. step_weigh_part: gamma and scale of the working rows; the keys stay unscaled     section 3.6
//   2. step_part:       per (batch, head) the new row's output                          sections 3.9, 3.12
//      before the first row of a chunk the state that the chunk before leaves           section 3.11
//      behind the last row of a chunk a head start of that product (kernels/mamba3.h)
//
// Keys are scaled where they are read, and rows and states lie in lanes, so that nothing of the chunk is laid out anew.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "samba/backends/cpu/mamba3_step.cpp"
#include <hwy/foreach_target.h>
// Highway wants its list of targets before anything else.
#include <hwy/cache_control.h>

#include "samba/backends/cpu/chunk_step-inl.h"
#include "samba/backends/cpu/mamba3-inl.h"
#include "samba/backends/cpu/mamba3.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE {
namespace {
using namespace mamba3_lanes;

// Working rows [first, last) of (batch, t).
void step_weigh_part(const Mamba3Call& call, Index first, Index last) {
  const Index heads = call.heads(), working = call.working_rows();
  const auto row_of = [&](const float* buffered, const float* current, Index batch, Index t) {
    return t < call.buffered ? buffered + (batch * call.buffer.rows + t) * heads : current + batch * heads;
  };
  for (Index row = first; row < last; ++row) {
    const Index batch = row / working, t = row % working, next = std::min(t + 1, working - 1);
    const float* dt = row_of(call.buffer.dt, call.current.dt, batch, t);
    const float* sigma = row_of(call.buffer.sigma, call.current.sigma, batch, t);
    const float* next_dt = row_of(call.buffer.dt, call.current.dt, batch, next);
    const float* next_sigma = row_of(call.buffer.sigma, call.current.sigma, batch, next);
    over_vectors(D(), 0, heads, [&](auto io, Index h) HWY_ATTR {
      const auto read = [&](const float* p) HWY_ATTR { return flush_operand(D(), io.load(p + h)); };
      const V gamma = mul(read(dt), read(sigma));
      const V beta = t + 1 < working ? mul(read(next_dt), sub(constant(1.0F), read(next_sigma))) : zero();
      io.store(gamma, call.gamma + row * heads + h);
      io.store(add(gamma, beta), call.scale + row * heads + h);
    });
  }
}

// What one (batch, head) reads.
struct Step {
  const Mamba3Call* call;
  Index batch, head;
  Index row;  // of the chunk: the new one, or 64 behind a full chunk. The buffer holds those before it

  Index heads() const { return call->heads(); }
  Index cell() const { return batch * heads() + head; }
  const float* q() const { return call->current.q + cell() * N; }
  const float* key(Index j) const { return call->buffer.k + ((batch * call->buffer.rows + j) * heads() + head) * N; }
  const float* v(Index j) const {
    return j < row ? call->buffer.v + (batch * call->buffer.rows + j) * call->buffer.v_stride + head * P
                   : call->current.v + batch * call->current.v_stride + head * P;
  }
  float adt(Index j) const {
    return j < row ? call->buffer.adt[(batch * call->buffer.rows + j) * heads() + head] : call->current.adt[cell()];
  }
  Index working_cell(Index j) const {
    return (batch * call->working_rows() + call->buffered - row + j) * heads() + head;
  }
  float* h() const { return call->h + cell() * P * N; }
};

// weights[j] = (q . ks_j) * L[row][j] for the rows j before the new one.
void weigh_keys(const Step& s, const float* adt, float* scale, float* sums, float* weights) {
  if (s.row == 0) return;
  for (Index j = 0; j < Q; ++j) scale[j] = j < s.row ? s.call->scale[s.working_cell(j)] : 0.0F;
  segment_sums<1>(s.row, adt, Q, sums);
  constexpr int kGroups = 4;
  for (Index first = 0; first < s.row; first += kGroups * kLanes) {
    V dots[kGroups], factors[kGroups];
    for (int v = 0; v < kGroups; ++v) factors[v] = load(scale + first + v * kLanes);
    dot_rows(
        N, s.q(), [&](Index j) HWY_ATTR { return s.key(std::min(first + j, s.row - 1)); },
        [&](int v, V column) HWY_ATTR { return mul(column, factors[v]); }, dots);
    for (int v = 0; v < kGroups; ++v) {
      const Index j = first + v * kLanes;
      store(mul(flush_operand(D(), dots[v]), exp(load(sums + j))), weights + j);
    }
  }
}

// y[p] = chain over all 64 rows of mad(M, v, .): M is +0 for the new row, v for the rows that are missing after it.
void intra_row(const Step& s, const float* weights, float* y) {
  constexpr int kVectors = static_cast<int>(std::min<Index>(4, P / kLanes));
  for (Index p = 0; p < P; p += kVectors * kLanes) {
    V acc[kVectors];
    for (V& sum : acc) sum = zero();
    for (Index j = 0; j <= s.row; ++j) {
      const float* v = s.v(j) + p;
      const V weight = j < s.row ? broadcast(weights + j) : zero();
      HWY_UNROLL(4)
      for (int x = 0; x < kVectors; ++x) acc[x] = mad(weight, load(v + x * kLanes), acc[x]);
    }
    for (int x = 0; x < kVectors; ++x) store(s.row + 1 < Q ? add(acc[x], zero()) : acc[x], y + p + x * kLanes);
  }
}

// The product of section 3.11 over the 64 rows of a chunk, of which the last may be the new one. Its keys are read
// once, whole rows at a time: they lie so far apart that the hardware does not see the next ones coming.
class ChunkProduct {
 public:
  static constexpr Index kScratch = Q * (1 + P + N);

  ChunkProduct(const Step& chunk, Index depth, float* scratch)
      : chunk_(chunk), depth_(depth), left_(scratch), values_(left_ + Q), keys_(values_ + Q * P) {
    for (Index i = 0; i < Q; ++i) left_[i] = chunk.adt(i);
    for (Index i = 1; i < Q; ++i) left_[i] = add_one(left_[i - 1], left_[i]);
    const V whole = broadcast(left_ + Q - 1);
    carry_ = exp(whole);
    each_vector(Q, [&](Index i) { store(exp(sub(whole, load(left_ + i))), left_ + i); });
    for (Index i = 0; i < depth; ++i) lay_out(i);
  }

  // h becomes the state leaving the chunk. `sums`: what start_rows(rows) left.
  void finish_rows(Index rows, const float* sums) const {
    float* const h = chunk_.h();
    const auto finish = [&](Index p, Index n, V sum) { store(mad(carry_, load(h + p * N + n), sum), h + p * N + n); };
    for (Index p = 0; p < rows; ++p) {
      const V value = broadcast(values_ + (Q - 1) * P + p);
      each_vector(N, [&](Index n) { finish(p, n, mad(value, load(key(Q - 1, n)), load(sums + p * N + n))); });
    }
    multiply(rows, P, finish);
  }

  // The chains of the rows p < rows.
  void start_rows(Index rows, float* sums) const {
    multiply(0, rows, [&](Index p, Index n, V sum) { store(sum, sums + p * N + n); });
  }

 private:
  // Of row i the values, decayed to the chunk's end, and the scaled keys. Asks for what the next head reads there.
  void lay_out(Index i) {
    const float* v = chunk_.v(i);
    const float* k = chunk_.key(i);
    if (chunk_.head + 1 < chunk_.heads()) {
      fetch(v + P, P);
      fetch(k + N, N);
    }
    const V left = broadcast(left_ + i), scale = broadcast(chunk_.call->scale + chunk_.working_cell(i));
    each_vector(P, [&](Index p) { store(mul(load(v + p), left), values_ + i * P + p); });
    each_vector(N, [&](Index n) { store(mul(load(k + n), scale), key(i, n)); });
  }
  static void fetch(const float* row, Index count) {
    constexpr Index kLineFloats = 16;
    for (Index i = 0; i < count; i += kLineFloats) hwy::Prefetch(row + i);
  }

  float* key(Index i, Index n) const {
    return keys_ + n / kPackedWidth * (Q * kPackedWidth) + i * kPackedWidth + n % kPackedWidth;
  }

  // finish(p, n, chain over the terms i < depth) for the rows p in [first, last).
  template <class Finish>
  void multiply(Index first, Index last, Finish&& finish) const {
    const auto start = [](Index, Index) HWY_ATTR { return zero(); };
    for (Index n = 0; n < N; n += kPackedWidth) {
      for (Index p = first; p < last; p += kPackedRows) {
        product_tile<kPackedRows, kPackedVectors>(Strided{values_, 1, P}, p, key(0, n), kPackedWidth, 0, 0, depth_,
                                                  start, [&](Index row, Index x, V sum) { finish(row, n + x, sum); });
      }
    }
  }

  Step chunk_;
  Index depth_;
  float* left_;    // [64] the decay to the chunk's end
  float* values_;  // [64][64]
  float* keys_;    // [128 / kPackedWidth][64][kPackedWidth]
  V carry_;        // the whole decay
};

Index step_scratch() { return 4 * Q + P + ChunkProduct::kScratch; }

// Sequences [first, last) of (batch, head).
void step_part(const Mamba3Call& call, Index head_start_rows, Index first, Index last, float* scratch) {
  float* const adt = scratch;
  float* const scale = adt + Q;
  float* const sums = scale + Q;
  float* const weights = sums + Q;
  float* const y_intra = weights + Q;
  float* const product = y_intra + P;
  const Index heads = call.heads();
  const Index rows = call.head_start == nullptr ? 0 : head_start_rows;
  const Index width = mamba3::projection_width(call.d_model);
  for (Index sequence = first; sequence < last; ++sequence) {
    const Step s{&call, sequence / heads, sequence % heads, call.buffered % Q};
    float* const head_start = rows > 0 ? call.head_start + sequence * rows * N : nullptr;
    if (call.chunks() == 2) {
      const ChunkProduct before({&call, s.batch, s.head, Q}, Q, product);
      before.finish_rows(call.head_start_known ? rows : 0, head_start);
    }
    for (Index j = 0; j <= s.row; ++j) adt[j] = s.adt(j);
    weigh_keys(s, adt, scale, sums, weights);
    intra_row(s, weights, y_intra);
    const V reach = exp(constant(sum_terms(s.row, adt)));
    const float gamma = call.gamma[s.working_cell(s.row)];
    const V own = constant(samba::add(call.d[s.head], samba::mul(call.qk_chain[s.cell()], gamma)));
    const float* z = call.in_proj + s.batch * width + mamba3::columns(call.d_model).z + s.head * P;
    const Index out = s.cell() * P;
    state_dots(P, N, s.q(), s.h(), [&](Index p, V sum) HWY_ATTR {
      const V y0 = add(mul(flush_operand(D(), sum), reach), load(y_intra + p));
      const V y1 = add(y0, mul(own, load(s.v(s.row) + p)));
      store(y1, call.skip + out + p);
      store(mul(y1, silu(load(z + p))), call.gate + out + p);
    });
    if (s.row == Q - 1 && rows > 0) {
      // The scale of the last key needs the next token.
      ChunkProduct(s, Q - 1, product).start_rows(rows, head_start);
    }
  }
}

}  // namespace
}  // namespace samba::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace samba::cpu {

namespace {
HWY_EXPORT(step_scratch);
HWY_EXPORT(step_weigh_part);
HWY_EXPORT(step_part);

constexpr Index kWeighGrain = 64;  // rows a thread should have
}  // namespace

bool Mamba3Cpu::is_step(const Mamba3Call& call) {
  const bool outputs_alone = call.h_last == nullptr && call.decay == nullptr && call.pass_states == nullptr &&
                             call.qkdot == nullptr && call.y_intra == nullptr && call.y_state == nullptr;
  return outputs_alone && call.tokens == 1 && call.h != nullptr && call.pending_k == nullptr;
}

void Mamba3Cpu::step_weigh(const Mamba3Call& call) {
  context_.parallel(call.batch * call.working_rows(), kWeighGrain, [&](Index first, Index last, int) {
    SAMBA_CPU_KERNEL(context_, step_weigh_part)(call, first, last);
  });
}

void Mamba3Cpu::step(const Mamba3Call& call) {
  const Index floats = SAMBA_CPU_KERNEL(context_, step_scratch)();
  context_.parallel(call.batch * call.heads(), 4, [&](Index first, Index last, int thread) {
    SAMBA_CPU_KERNEL(context_, step_part)(call, kHeadStartRows, first, last, context_.scratch(thread, floats));
  });
}

}  // namespace samba::cpu
#endif  // HWY_ONCE
