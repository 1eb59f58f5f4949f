// The reverse scan of Mamba-1 (spec 32 sections 3.3 to 3.6).
//
// One unit of work is a leaf of channels of one batch row. It goes through the tokens backwards in segments of 16: from
// the state that the forward kept it computes the segment's states again, then walks back. Channels are in lanes; the
// chains over channels of dB and dC take the transposed states, with the 16 states in lanes.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "samba/backends/cpu/mamba1_scan_backward.cpp"
#include <hwy/foreach_target.h>
// Highway wants its list of targets before anything else.
#include "samba/backends/cpu/channels-inl.h"
#include "samba/backends/cpu/mamba1.h"
#include "samba/backends/cpu/mamba1_gradient.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE {

using Tag = hn::ScalableTag<float>;
using Lanes = SimdLanes<Tag>;
using Vector = Lanes::F;
using mamba1::kSegment;
using mamba1::kStates;

constexpr Index kWidth = static_cast<Index>(hn::MaxLanes(Tag()));

// [16 states][lanes]
struct States {
  float* at;
  HWY_INLINE Vector get(Index n) const { return flush_operand(Tag(), hn::Load(Tag(), at + n * kWidth)); }
  HWY_INLINE void set(Index n, Vector v) const { hn::Store(v, Tag(), at + n * kWidth); }
  HWY_INLINE States next(Index count) const { return {at + count * kStates * kWidth}; }
  HWY_INLINE void load(const float* rows, Index channels) const {
    transpose_rows(rows, kStates, channels, kStates, kWidth, at);
  }
  // rows[channel][16]
  HWY_INLINE void store(float* rows, Index channels) const {
    transpose_rows(at, kWidth, kStates, channels, kStates, rows);
  }
};

// What a unit carries for one vector of its channels.
struct Carried {
  States d_h, decay, d_a, a;
};

struct Segment {
  Index first, count;    // tokens of the batch row
  States decay, h, d_h;  // per token; h has the entering state in front
  float* input;          // [count][lanes] delta u
  float *turned_h, *turned_d_h;
};

HWY_INLINE void compute_states(const Mamba1Call& c, Index b, Index d, Index channels, const Carried& carried,
                               const Segment& s) {
  const Lanes l{};
  const Index di = c.channels();
  s.h.load(c.kept + ((b * c.segments() + s.first / kSegment) * di + d) * kStates, channels);
  over_vectors(l.d, d, d + channels, [&](auto io, Index) HWY_ATTR {
    for (Index i = 0; i < s.count; ++i) {
      const Index t = b * c.tokens + s.first + i;
      const float* B = c.x_proj + t * c.x_width() + c.dt_rank();
      const auto delta = io.load(c.delta + t * di + d), u = io.load(c.u + t * di + d);
      const States before = s.h.next(i), after = s.h.next(i + 1), decays = s.decay.next(i);
      for (Index n = 0; n < kStates; ++n) {
        const auto decay = elementary::exp(l, l.flush(l.mul(delta, carried.a.get(n))));
        const auto input = l.flush(l.mul(l.flush(l.mul(delta, l.set(B[n]))), u));
        decays.set(n, decay);
        after.set(n, l.fma(decay, before.get(n), input));
      }
      hn::Store(l.flush(l.mul(delta, u)), l.d, s.input + i * kWidth);
    }
  });
}

HWY_INLINE void walk_back(const Mamba1Call& c, const Mamba1Gradients& g, Index b, Index d, Index channels,
                          const Carried& carried, const Segment& s) {
  const Lanes l{};
  const Index di = c.channels();
  over_vectors(l.d, d, d + channels, [&](auto io, Index) HWY_ATTR {
    const auto dt_bias = l.flush(io.load(c.dt_bias + d));
    for (Index i = s.count - 1; i >= 0; --i) {
      const bool last = s.first + i + 1 == c.tokens;
      const Index t = b * c.tokens + s.first + i;
      const Index at = t * di + d;
      const float* B = c.x_proj + t * c.x_width() + c.dt_rank();
      const float* C = B + kStates;
      const auto delta = io.load(c.delta + at), u = io.load(c.u + at), d_skip = io.load(g.d_skip + at);
      const States before = s.h.next(i), decays = s.decay.next(i), d_states = s.d_h.next(i);
      auto d_u = l.set(0.0F), d_delta = l.set(0.0F);
      for (Index n = 0; n < kStates; ++n) {
        const auto bn = l.set(B[n]), decay = decays.get(n);
        const auto contribution = l.flush(l.mul(d_skip, l.set(C[n])));
        const auto d_h = last ? contribution : l.flush(l.fma(carried.decay.get(n), carried.d_h.get(n), contribution));
        const auto d_argument = l.flush(l.mul(l.flush(l.mul(d_h, before.get(n))), decay));
        d_u = l.flush(l.fma(d_h, l.flush(l.mul(delta, bn)), d_u));
        d_delta = l.flush(l.fma(l.flush(l.mul(d_h, u)), bn, d_delta));
        d_delta = l.flush(l.fma(d_argument, carried.a.get(n), d_delta));
        carried.d_a.set(n, l.fma(d_argument, delta, carried.d_a.get(n)));
        carried.d_h.set(n, d_h);
        carried.decay.set(n, decay);
        d_states.set(n, d_h);
      }
      const auto biased = l.flush(l.add(l.flush(io.load(c.dt_proj + at)), dt_bias));
      const auto sloped = l.mul(d_delta, l.flush(elementary::sigmoid(l, biased)));
      io.store(d_u, g.d_u_scan + at);
      io.store(d_delta, g.d_delta + at);
      io.store(l.select(l.le(biased, l.set(20.0F)), sloped, d_delta), g.d_dt_proj + at);
    }
  });
}

// Continues the chains of dB and dC of each token of the segment over the channels of one vector.
HWY_INLINE void sum_channels(const Mamba1Call& c, const Mamba1Gradients& g, Index b, Index d, Index channels,
                             bool first, float* sums, const Segment& s) {
  const hn::CappedTag<float, kStates> dn;
  constexpr Index kLanes = static_cast<Index>(hn::MaxLanes(dn));
  constexpr Index kParts = kStates / kLanes;
  const Index di = c.channels();
  for (Index i = 0; i < s.count; ++i) {
    const Index t = b * c.tokens + s.first + i;
    s.h.next(i + 1).store(s.turned_h, channels);
    s.d_h.next(i).store(s.turned_d_h, channels);
    float* out = sums + t * 2 * kStates;
    hn::Vec<decltype(dn)> db[kParts], dc[kParts];
    for (Index p = 0; p < kParts; ++p) {
      db[p] = first ? hn::Zero(dn) : hn::LoadU(dn, out + p * kLanes);
      dc[p] = first ? hn::Zero(dn) : hn::LoadU(dn, out + kStates + p * kLanes);
    }
    for (Index k = 0; k < channels; ++k) {
      const auto input = hn::Set(dn, s.input[i * kWidth + k]), d_skip = hn::Set(dn, g.d_skip[t * di + d + k]);
      for (Index p = 0; p < kParts; ++p) {
        const auto d_h = hn::Load(dn, s.turned_d_h + k * kStates + p * kLanes);
        const auto h = hn::Load(dn, s.turned_h + k * kStates + p * kLanes);
        db[p] = flush_operand(dn, fused(dn, flush_operand(dn, input), flush_operand(dn, d_h), db[p]));
        dc[p] = flush_operand(dn, fused(dn, d_skip, flush_operand(dn, h), dc[p]));
      }
    }
    for (Index p = 0; p < kParts; ++p) {
      hn::StoreU(flush_store(dn, db[p]), dn, out + p * kLanes);
      hn::StoreU(flush_store(dn, dc[p]), dn, out + kStates + p * kLanes);
    }
    if (g.d_h == nullptr) continue;
    over_vectors(Tag(), 0, channels * kStates, [&](auto io, Index k) HWY_ATTR {
      io.store(io.load(s.turned_d_h + k), g.d_h + (t * di + d) * kStates + k);
    });
  }
}

// Channels [first, end) of batch row b, one leaf; `scratch` holds reverse_scratch_floats of it.
void reverse_leaf(const Mamba1Call& c, const Mamba1Gradients& g, Index b, Index first, Index end, float* sums,
                  float* scratch) {
  const Index vectors = (end - first + kWidth - 1) / kWidth;
  const auto take = [&](Index tokens) {
    float* at = scratch;
    scratch += tokens * kStates * kWidth;
    return States{at};
  };
  const Carried all{take(vectors), take(vectors), take(vectors), take(vectors)};
  Segment s{0, 0, take(kSegment), take(kSegment + 1), take(kSegment), nullptr, take(1).at, take(1).at};
  s.input = scratch;
  std::fill_n(all.d_a.at, vectors * kStates * kWidth, 0.0F);
  for (Index v = 0; v < vectors; ++v) {
    const Index d = first + v * kWidth;
    all.a.next(v).load(c.a + d * kStates, std::min(kWidth, end - d));
  }
  for (Index segment = c.segments() - 1; segment >= 0; --segment) {
    s.first = segment * kSegment;
    s.count = std::min(kSegment, c.tokens - s.first);
    for (Index v = 0; v < vectors; ++v) {
      const Index d = first + v * kWidth;
      const Index channels = std::min(kWidth, end - d);
      const Carried carried{all.d_h.next(v), all.decay.next(v), all.d_a.next(v), all.a.next(v)};
      compute_states(c, b, d, channels, carried, s);
      walk_back(c, g, b, d, channels, carried, s);
      sum_channels(c, g, b, d, channels, v == 0, sums, s);
    }
  }
  for (Index v = 0; v < vectors; ++v) {
    const Index d = first + v * kWidth;
    all.d_a.next(v).store(g.d_a_rows + (b * c.channels() + d) * kStates, std::min(kWidth, end - d));
  }
}

// dB and dC of the rows [first, end) from their leaves.
void join_leaves(const Mamba1Call& c, const Mamba1Gradients& g, Index first, Index end) {
  const Tag d;
  const Index leaves = leaf_count(c.channels());
  for (Index t = first; t < end; ++t) {
    float* out = g.d_x_proj + t * c.x_width() + c.dt_rank();
    over_vectors(d, 0, 2 * kStates, [&](auto io, Index n) HWY_ATTR {
      VectorTree<Tag> tree;
      for (Index leaf = 0; leaf < leaves; ++leaf) {
        tree.push(d, io.load(g.leaf_sums + (leaf * c.rows() + t) * 2 * kStates + n));
      }
      io.store(tree.finish(d), out + n);
    });
  }
}

void a_log_gradient(const Mamba1Call& c, const Mamba1Gradients& g, Index first, Index end) {
  const Lanes l{};
  const Index cells = c.channels() * kStates;
  over_vectors(l.d, first, end, [&](auto io, Index i) HWY_ATTR {
    auto sum = l.set(0.0F);
    for (Index b = 0; b < c.batch; ++b) sum = l.flush(l.add(sum, l.flush(io.load(g.d_a_rows + b * cells + i))));
    io.store(l.mul(sum, l.flush(io.load(c.a + i))), g.d_a_log + i);
  });
}

}  // namespace samba::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace samba::cpu {

namespace {

HWY_EXPORT(reverse_leaf);
HWY_EXPORT(join_leaves);
HWY_EXPORT(a_log_gradient);

constexpr Index kRowGrain = 512;     // rows of 32 sums
constexpr Index kCellGrain = 16384;  // cells of A_log

}  // namespace

void Mamba1Cpu::scan_backward(const Mamba1Call& call, const Mamba1Gradients& gradients) {
  const Index di = call.channels();
  const Index leaf = leaf_length(di);
  const Index leaves = leaf_count(di);
  const auto reverse = SAMBA_CPU_KERNEL(context_, reverse_leaf);
  context_.parallel(call.batch * leaves, 1, [&](Index first, Index end, int thread) {
    float* scratch = context_.scratch(thread, reverse_scratch_floats(leaf));
    for (Index unit = first; unit < end; ++unit) {
      const Index at = unit % leaves;
      float* sums = gradients.leaf_sums + at * call.rows() * 2 * mamba1::kStates;
      reverse(call, gradients, unit / leaves, at * leaf, std::min(di, (at + 1) * leaf), sums, scratch);
    }
  });
  const auto join = SAMBA_CPU_KERNEL(context_, join_leaves);
  context_.parallel(call.rows(), kRowGrain, [&](Index first, Index end, int) { join(call, gradients, first, end); });
  const auto rates = SAMBA_CPU_KERNEL(context_, a_log_gradient);
  context_.parallel(di * mamba1::kStates, kCellGrain,
                    [&](Index first, Index end, int) { rates(call, gradients, first, end); });
}

}  // namespace samba::cpu
#endif  // HWY_ONCE
