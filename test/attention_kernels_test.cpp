// The attention and rope kernels of the cpu executor give the bits of the reference executor, on every instruction set
// and with any number of threads.
#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "bits.h"
#include "samba/backends/registry.h"
#include "samba/blocks/rotary_table.h"
#include "samba/core/error.h"
#include "samba/kernels/attention.h"
#include "samba/kernels/extended_gradients.h"
#include "samba/kernels/rope.h"
#include "samba/numerics/elementary.h"

namespace samba {
namespace {

using Floats = std::vector<float>;

enum class Values { plain, subnormal, signed_zeros, huge, infinite };
constexpr Values kAllValues[] = {Values::plain, Values::subnormal, Values::signed_zeros, Values::huge,
                                 Values::infinite};

class Draw {
 public:
  explicit Draw(std::uint32_t seed) : engine_(seed) {}
  Index between(Index low, Index high) { return std::uniform_int_distribution<Index>(low, high)(engine_); }
  bool one_in(Index n) { return between(1, n) == 1; }

  Floats floats(Index count, Values values) {
    Floats drawn(static_cast<std::size_t>(count));
    for (float& v : drawn) v = value(values);
    return drawn;
  }

 private:
  float value(Values values) {
    const float plain = std::uniform_real_distribution<float>(-2.0F, 2.0F)(engine_);
    if (values == Values::plain) return plain;
    if (values == Values::subnormal) {  // products and sums on both sides of the smallest normal number
      if (one_in(4)) return from_bits(static_cast<std::uint32_t>(between(0, 0xFFFFFF)) | (one_in(2) ? kSignBit : 0));
      return plain * (one_in(2) ? 0x1p-64F : 0x1p-120F);
    }
    if (values == Values::signed_zeros && one_in(3)) return one_in(2) ? -0.0F : 0.0F;
    if (values == Values::huge && one_in(3)) return plain * 0x1p63F;  // scores on both sides of 2^127
    if (values == Values::infinite && one_in(40)) return one_in(2) ? kInfinity : -kInfinity;
    return plain;
  }
  std::mt19937 engine_;
};

std::string text(const AttentionShape& s) {
  return "batch " + std::to_string(s.batch) + " queries " + std::to_string(s.queries) + " heads " +
         std::to_string(s.n_heads) + "/" + std::to_string(s.n_kv_heads) + " head_dim " + std::to_string(s.head_dim) +
         " window " + std::to_string(s.window) + " first_position " + std::to_string(s.first_position) +
         (s.softcap ? " softcap" : "");
}

AttentionShape draw_shape(Draw& draw, Index max_queries) {
  AttentionShape shape;
  shape.batch = draw.between(1, 2);
  shape.n_kv_heads = draw.between(1, 2);
  shape.n_heads = shape.n_kv_heads * draw.between(1, 3);
  shape.head_dim = 2 * draw.between(1, draw.one_in(4) ? 130 : 20);
  shape.queries = draw.one_in(3) ? 1 : draw.between(1, draw.one_in(3) ? max_queries : 12);
  if (draw.one_in(2)) shape.window = draw.between(1, 30);
  return shape;
}

// Every cpu executor of this machine, each instruction set with 1, 2 and 3 threads, and the GPU kernels on the host
// adapter.
void with_every_executor(const std::function<void(Executor&, const std::string&)>& body) {
  for (const std::string& set : instruction_sets()) {
    for (int threads : {1, 2, 3}) {
      ExecutorOptions options;
      options.instruction_set = set;
      options.threads = threads;
      body(*make_executor("cpu", options), set + ", threads " + std::to_string(threads));
    }
  }
  for (const std::string& device : compiled_devices()) {
    if (device != "gpu-host") continue;
    for (const char* set : {"warp32", "warp64-seed3"}) body(*make_executor(device, {2, set}), set);
  }
}

struct ForwardCase {
  AttentionShape shape;
  Floats q, keys, values;
  std::vector<std::int16_t> codes;  // of the keys, under fixed15_v1
  std::vector<std::int32_t> exponents;
  KeyValueView view;
};

AttentionShape draw_forward_shape(Draw& draw, Values values) {
  AttentionShape shape = draw_shape(draw, 70);
  shape.first_position = draw.one_in(2) ? 0 : draw.between(0, 60);
  if (draw.one_in(4)) shape.softcap = values == Values::huge ? 0x1.fffffep127F : 1.5F;
  return shape;
}

// Enough work for several threads: a prefill, decode steps with one head and with few a thread, a chunk, a window.
const AttentionShape kLargeForwards[] = {{2, 100, 4, 2, 64, 0, 0, {}},  {1, 1, 6, 6, 64, 0, 700, {}},
                                         {1, 1, 6, 1, 62, 0, 700, {}},  {1, 3, 2, 1, 128, 0, 300, {}},
                                         {1, 130, 3, 3, 32, 40, 0, {}}, {1, 1, 4, 2, 64, 600, 900, {}}};

// Backwards with a whole KV head a thread, and with fewer KV heads than threads.
const AttentionShape kLargeBackwards[] = {
    {3, 70, 4, 2, 32, 0, 0, {}}, {1, 100, 2, 1, 48, 0, 0, {}}, {1, 110, 3, 3, 22, 30, 0, 2.0F}};

ForwardCase draw_forward(Draw& draw, const AttentionShape& shape, Values values) {
  ForwardCase c;
  c.shape = shape;
  const AttentionShape& s = c.shape;
  Index slots = s.keys();
  if (s.queries == 1 && s.window > 0) {
    c.view.ring = s.window;
    slots = s.window;
  } else {
    c.view.origin = s.first_key();
  }
  c.view.slot_stride = s.head_dim;
  c.view.head_stride = slots * s.head_dim;
  c.view.batch_stride = s.n_kv_heads * c.view.head_stride;
  c.q = draw.floats(s.batch * s.queries * s.n_heads * s.head_dim, values);
  c.keys = draw.floats(s.batch * c.view.batch_stride, values);
  c.values = draw.floats(s.batch * c.view.batch_stride, values == Values::huge ? Values::plain : values);
  c.view.keys = c.keys.data();
  c.view.values = c.values.data();
  return c;
}

// The same draw under fixed15_v1.
ForwardCase draw_forward_codes(Executor& executor, Draw& draw, const AttentionShape& shape, Values values) {
  ForwardCase c = draw_forward(draw, shape, values);
  const Index rows = static_cast<Index>(c.keys.size()) / shape.head_dim;
  c.codes.resize(c.keys.size());
  c.exponents.resize(static_cast<std::size_t>(rows));
  executor.fixed15().quantize(rows, shape.head_dim, c.keys.data(), c.codes.data(), c.exponents.data());
  c.view.key_codes = c.codes.data();
  c.view.key_exponents = c.exponents.data();
  return c;
}

struct ForwardResult {
  Floats context, scores, masked, maximum, exponentials, denominators, weights;
};

ForwardResult run_forward(Executor& executor, const ForwardCase& c, bool with_stages) {
  const AttentionShape& s = c.shape;
  ForwardResult r;
  r.context.assign(c.q.size(), 7.0F);
  AttentionStages stages;
  if (with_stages) {
    const auto rows = static_cast<std::size_t>(s.batch * s.n_heads * s.queries);
    const std::size_t cells = rows * static_cast<std::size_t>(s.keys());
    for (Floats* f : {&r.scores, &r.masked, &r.exponentials, &r.weights}) f->assign(cells, 7.0F);
    for (Floats* f : {&r.maximum, &r.denominators}) f->assign(rows, 7.0F);
    stages = {r.scores.data(),       r.masked.data(),       r.maximum.data(),
              r.exponentials.data(), r.denominators.data(), r.weights.data()};
  }
  executor.attention().attention_forward(s, c.q.data(), c.view, r.context.data(), stages);
  return r;
}

TEST_CASE("attention forward on every executor has the reference's bits") {
  const auto reference = make_executor("reference");
  Draw draw(20260101);
  std::vector<ForwardCase> cases;
  std::vector<ForwardResult> wanted;
  for (int round = 0; round < 14; ++round) {
    for (Values values : kAllValues) {
      cases.push_back(draw_forward(draw, draw_forward_shape(draw, values), values));
      cases.push_back(draw_forward_codes(*reference, draw, draw_forward_shape(draw, values), values));
    }
  }
  for (const AttentionShape& shape : kLargeForwards) {
    cases.push_back(draw_forward(draw, shape, Values::plain));
    cases.push_back(draw_forward_codes(*reference, draw, shape, Values::plain));
  }
  for (const ForwardCase& c : cases) wanted.push_back(run_forward(*reference, c, true));
  with_every_executor([&](Executor& cpu, const std::string& name) {
    for (std::size_t i = 0; i < cases.size(); ++i) {
      INFO(name << ", case " << i << ": " << text(cases[i].shape) << (cases[i].codes.empty() ? "" : " fixed15"));
      CHECK(bits_equal(run_forward(cpu, cases[i], false).context, wanted[i].context));
      const ForwardResult got = run_forward(cpu, cases[i], true);
      CHECK(bits_equal(got.scores, wanted[i].scores));
      CHECK(bits_equal(got.masked, wanted[i].masked));
      CHECK(bits_equal(got.maximum, wanted[i].maximum));
      CHECK(bits_equal(got.exponentials, wanted[i].exponentials));
      CHECK(bits_equal(got.denominators, wanted[i].denominators));
      CHECK(bits_equal(got.weights, wanted[i].weights));
      REQUIRE(bits_equal(got.context, wanted[i].context));
    }
  });
}

TEST_CASE("a masked key acts by being the row maximum, and in no other way") {
  // Two queries, the second key masked for the first query: its score of 2^127 and more makes the visible exponential
  // +0.
  const auto reference = make_executor("reference");
  const AttentionShape shape{1, 2, 1, 1, 2, 0, 0, {}};
  const Floats q{0x1p64F, 0.0F, 0x1p64F, 0.0F};
  const Floats keys{1.0F, 0.0F, 0x1p64F, 0.0F};
  const Floats values{3.0F, 4.0F, 5.0F, 6.0F};
  const KeyValueView view{keys.data(), values.data(), 4, 4, 2, 0, 0};
  const auto check = [&](Executor& executor) {
    Floats context(4);
    executor.attention().attention_forward(shape, q.data(), view, context.data(), {});
    CHECK(is_nan(context[0]));  // the masked score overflows to +inf
    CHECK(is_nan(context[1]));
  };
  check(*reference);
  with_every_executor([&](Executor& cpu, const std::string& name) {
    INFO(name);
    check(cpu);
  });
}

struct BackwardCase {
  AttentionShape shape;
  Floats q, k, v, d_context;
};

BackwardCase draw_backward(Draw& draw, const AttentionShape& s, Values values) {
  const Index rows = s.batch * s.queries;
  BackwardCase c;
  c.shape = s;
  c.q = draw.floats(rows * s.n_heads * s.head_dim, values);
  c.k = draw.floats(rows * s.n_kv_heads * s.head_dim, values);
  c.v = draw.floats(rows * s.n_kv_heads * s.head_dim, values == Values::huge ? Values::plain : values);
  c.d_context = draw.floats(rows * s.n_heads * s.head_dim, values);
  return c;
}

struct BackwardResult {
  Floats dq, dk, dv, d_weights, z_dot, d_masked, d_scores;
};

BackwardResult run_backward(Executor& executor, const BackwardCase& c, bool with_stages) {
  const AttentionShape& s = c.shape;
  BackwardResult r;
  r.dq.assign(c.q.size(), 7.0F);
  r.dk.assign(c.k.size(), 7.0F);
  r.dv.assign(c.k.size(), 7.0F);
  AttentionBackwardStages stages;
  if (with_stages) {
    const auto rows = static_cast<std::size_t>(s.batch * s.n_heads * s.queries);
    for (Floats* f : {&r.d_weights, &r.d_masked, &r.d_scores})
      f->assign(rows * static_cast<std::size_t>(s.queries), 7.0F);
    r.z_dot.assign(rows, 7.0F);
    stages = {r.d_weights.data(), r.z_dot.data(), r.d_masked.data(), r.d_scores.data()};
  }
  executor.attention().attention_backward(s, c.q.data(), c.k.data(), c.v.data(), c.d_context.data(), r.dq.data(),
                                          r.dk.data(), r.dv.data(), stages);
  return r;
}

TEST_CASE("attention backward on every executor has the reference's bits") {
  const auto reference = make_executor("reference");
  Draw draw(20260102);
  std::vector<BackwardCase> cases;
  std::vector<BackwardResult> wanted;
  for (int round = 0; round < 10; ++round) {
    for (Values values : kAllValues) {
      AttentionShape shape = draw_shape(draw, 80);
      if (round % 3 == 2) shape.softcap = values == Values::huge ? 0x1.fffffep127F : 1.5F;
      cases.push_back(draw_backward(draw, shape, values));
    }
  }
  for (const AttentionShape& shape : kLargeBackwards) cases.push_back(draw_backward(draw, shape, Values::plain));
  for (const BackwardCase& c : cases) wanted.push_back(run_backward(*reference, c, true));
  with_every_executor([&](Executor& cpu, const std::string& name) {
    const bool softcap = dynamic_cast<SoftcapGradients*>(&cpu.attention()) != nullptr;
    for (std::size_t i = 0; i < cases.size(); ++i) {
      if (cases[i].shape.softcap && !softcap) continue;
      INFO(name << ", case " << i << ": " << text(cases[i].shape));
      const BackwardResult plain = run_backward(cpu, cases[i], false);
      CHECK(bits_equal(plain.dq, wanted[i].dq));
      CHECK(bits_equal(plain.dk, wanted[i].dk));
      CHECK(bits_equal(plain.dv, wanted[i].dv));
      const BackwardResult got = run_backward(cpu, cases[i], true);
      CHECK(bits_equal(got.d_weights, wanted[i].d_weights));
      CHECK(bits_equal(got.z_dot, wanted[i].z_dot));
      CHECK(bits_equal(got.d_masked, wanted[i].d_masked));
      REQUIRE(bits_equal(got.d_scores, wanted[i].d_scores));
    }
  });
}

TEST_CASE("keys and values of a call land in their slots, the last ones of a ring stay") {
  Draw draw(20260103);
  const AttentionShape shape{2, 7, 4, 2, 6, 3, 5, {}};
  const Floats k = draw.floats(2 * 7 * 2 * 6, Values::plain);
  const Floats v = draw.floats(2 * 7 * 2 * 6, Values::plain);
  const KeyValueView ring{nullptr, nullptr, 2 * 3 * 6, 3 * 6, 6, 3, 0};
  const auto check = [&](Executor& executor) {
    Floats keys(2 * 2 * 3 * 6), values(keys.size());
    executor.attention().store_keys_values(shape, k.data(), v.data(), keys.data(), values.data(), ring);
    for (Index b = 0; b < 2; ++b) {
      for (Index g = 0; g < 2; ++g) {
        for (Index p = 9; p < 12; ++p) {  // positions 5 .. 11 were written
          const Index from = ((b * 7 + p - 5) * 2 + g) * 6;
          const Index to = b * 36 + g * 18 + p % 3 * 6;
          const auto row = [](const Floats& f, Index at) {
            return std::span(f).subspan(static_cast<std::size_t>(at), 6);
          };
          CHECK(bits_equal(row(keys, to), row(k, from)));
          CHECK(bits_equal(row(values, to), row(v, from)));
        }
      }
    }
  };
  check(*make_executor("reference"));
  with_every_executor([&](Executor& cpu, const std::string&) { check(cpu); });
}

TEST_CASE("rotation and its backward on every executor have the reference's bits") {
  const auto reference = make_executor("reference");
  Draw draw(20260104);
  for (int round = 0; round < 8; ++round) {
    for (Values values : kAllValues) {
      const Index head_dim = 2 * draw.between(1, 40);
      const Index rotary_dim = draw.one_in(3) ? 2 * draw.between(1, head_dim / 2) : head_dim;
      const RopeShape shape{draw.between(1, 2), draw.between(1, 20), draw.between(1, 3),
                            head_dim,           rotary_dim,          draw.between(0, 9)};
      RotaryTable table(*reference, rotary_dim, 10000.0F);
      table.reserve(shape.first_position + shape.length);
      const Floats x = draw.floats(shape.batch * shape.length * shape.n_heads * head_dim, values);
      Floats want(x.size()), want_backward(x.size());
      reference->rope().rotate(shape, x.data(), table.cosines(), table.sines(), want.data());
      reference->rope().rotate_backward(shape, x.data(), table.cosines(), table.sines(), want_backward.data());
      with_every_executor([&](Executor& cpu, const std::string& name) {
        INFO(name << ", head_dim " << head_dim << ", rotary_dim " << rotary_dim);
        Floats got(x.size());
        cpu.rope().rotate(shape, x.data(), table.cosines(), table.sines(), got.data());
        REQUIRE(bits_equal(got, want));
        cpu.rope().rotate_backward(shape, x.data(), table.cosines(), table.sines(), got.data());
        REQUIRE(bits_equal(got, want_backward));
      });
    }
  }
}

TEST_CASE("a rotary table keeps its rows while it grows") {
  const auto executor = make_executor("reference");
  RotaryTable grown(*executor, 16, 10000.0F);
  for (Index positions : {1, 3, 70, 71, 400}) grown.reserve(positions);
  RotaryTable whole(*executor, 16, 10000.0F);
  whole.reserve(400);
  CHECK(bits_equal({grown.cosines(), 400 * 8}, {whole.cosines(), 400 * 8}));
  CHECK(bits_equal({grown.sines(), 400 * 8}, {whole.sines(), 400 * 8}));
  CHECK(to_bits(grown.inverse_frequencies()[0]) == to_bits(1.0F));
  CHECK(to_bits(grown.cosines()[399 * 8]) == to_bits(elementary::cos(399.0F)));
  CHECK(to_bits(grown.sines()[399 * 8]) == to_bits(elementary::sin(399.0F)));
}

TEST_CASE("the first column whose angle reaches 8192 is found") {
  const auto executor = make_executor("reference");
  const RotaryTable table(*executor, 8, 10000.0F);
  CHECK_FALSE(table.angle_fault(8191).has_value());
  const auto fault = table.angle_fault(8192);
  REQUIRE(fault.has_value());
  CHECK(fault->column == 0);
  CHECK(fault->angle == 8192.0F);
  RopeScaling linear;
  linear.kind = RopeScaling::Kind::linear;
  linear.factor = 4.0F;
  CHECK_FALSE(RotaryTable(*executor, 8, 10000.0F, linear).angle_fault(4 * 8192 - 1).has_value());
  CHECK(RotaryTable(*executor, 8, 10000.0F, linear).angle_fault(4 * 8192).has_value());
}

TEST_CASE("an odd rotary dimension is refused") {
  const auto executor = make_executor("reference");
  CHECK_THROWS_WITH(RotaryTable(*executor, 7, 10000.0F), Catch::Contains("rotary_dim") && Catch::Contains("7"));
}

}  // namespace
}  // namespace samba
