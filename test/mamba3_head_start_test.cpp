// The head start of a chunk's state (kernels/mamba3.h): the step that brings a chunk's last row runs a part of the
// product of spec 40 section 3.11 and keeps it beside the state. It gives the bits of the whole product, and it counts
// for the very next call on the very same state only: in these tests what was kept is spoilt wherever it must not
// count.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "mamba3_blocks.h"
#include "mamba3_calls.h"
#include "samba/kernels/dry_executor.h"

namespace samba {
namespace {

using namespace mamba3_blocks;

constexpr Index kBatch = 2, kLength = 200;
constexpr Index kFull = mamba3::kChunk;

// A sequence and the outputs of its prefill without a state.
struct Sequence {
  Floats x, y;
  Sequence(Fixture& f, std::uint32_t stream)
      : x(draw(stream, kBatch * kLength * kModel, 0.0F, 1.0F)), y(f.forward(kBatch, kLength, x, nullptr)) {}
};

void check_call(Fixture& f, const Sequence& s, Mamba3State& state, Index first, Index end) {
  INFO("tokens " << first << " to " << end);
  const Floats y = f.forward(kBatch, end - first, tokens(s.x, kBatch, first, end), &state);
  CHECK(bits_equal(y, tokens(s.y, kBatch, first, end)));
}

void check_steps(Fixture& f, const Sequence& s, Mamba3State& state, Index first, Index end) {
  for (Index t = first; t < end; ++t) check_call(f, s, state, t, t + 1);
}

// Behind the last row of a chunk, which came as a step.
std::unique_ptr<Mamba3State> full_chunk(Fixture& f, const Sequence& s) {
  auto state = f.state(kBatch);
  check_call(f, s, *state, 0, kFull - 2);
  check_steps(f, s, *state, kFull - 2, kFull);
  return state;
}

void spoil(Fixture& f, Mamba3State& state) {
  const Index size = kBatch * mamba3::heads(kModel) * f.executor->mamba3().head_start_size();
  std::fill_n(state.head_start(), size, 1e6F);
}

void set_all(Mamba3State& state, const Mamba3State& from) {
  const ArrayMap pieces = from.pieces();
  ConstArrayMap views;
  for (const auto& [name, array] : pieces) views.emplace(name, array);
  state.set(views, from.counters());
}

template <class Body>
void on_every_device(Body&& body) {
  for (const Device& device : devices()) {
    INFO(device.name << " " << device.options.instruction_set);
    Fixture f(device);
    body(f);
  }
}

TEST_CASE("the step behind a full chunk goes on from the head start") {
  on_every_device([](Fixture& f) {
    const Sequence s(f, 200);
    const bool made = f.executor->mamba3().head_start_size() > 0;
    CHECK(made == (f.executor->name() == "cpu"));
    check_steps(f, s, *full_chunk(f, s), kFull, kLength);
    const auto state = full_chunk(f, s);
    spoil(f, *state);
    const Floats y = f.forward(kBatch, 1, tokens(s.x, kBatch, kFull, kFull + 1), state.get());
    CHECK(bits_equal(y, tokens(s.y, kBatch, kFull, kFull + 1)) != made);
  });
}

TEST_CASE("a copy, a saved and loaded state and a state that was set do without the head start") {
  on_every_device([](Fixture& f) {
    const Sequence s(f, 201), other(f, 202);
    const auto state = full_chunk(f, s);
    const auto copy = std::unique_ptr<Mamba3State>(static_cast<Mamba3State*>(state->clone().release()));
    spoil(f, *copy);
    const auto loaded = f.state(kBatch);
    spoil(f, *loaded);
    set_all(*loaded, *state);
    for (Mamba3State* one : {copy.get(), loaded.get(), state.get()}) check_steps(f, s, *one, kFull, kFull + 70);

    const auto overwritten = full_chunk(f, s);
    set_all(*overwritten, *full_chunk(f, other));
    check_steps(f, other, *overwritten, kFull, kFull + 3);
    const auto counted = full_chunk(f, s);  // the same pieces set again: dropped all the same
    spoil(f, *counted);
    counted->set({}, {{"buffered_tokens", kFull}});
    check_steps(f, s, *counted, kFull, kFull + 3);
    const auto written = full_chunk(f, s);
    spoil(f, *written);
    written->data(Mamba3Piece::h);  // handed out for writing
    check_steps(f, s, *written, kFull, kFull + 3);
  });
}

TEST_CASE("a reset or another path from a restored snapshot drops the head start") {
  on_every_device([](Fixture& f) {
    const Sequence s(f, 203), other(f, 204);
    const auto state = full_chunk(f, s);
    spoil(f, *state);
    state->reset();
    check_call(f, other, *state, 0, kFull);
    check_steps(f, other, *state, kFull, kFull + 3);

    // Both paths share the tokens before the chunk's last one.
    Sequence branch = s;
    for (Index b = 0; b < kBatch; ++b) {
      const Index from = (b * kLength + kFull - 1) * kModel, end = (b + 1) * kLength * kModel;
      std::copy(other.x.begin() + from, other.x.begin() + end, branch.x.begin() + from);
    }
    branch.y = f.forward(kBatch, kLength, branch.x, nullptr);
    const auto walker = f.state(kBatch);
    check_call(f, s, *walker, 0, kFull - 1);
    const std::unique_ptr<BlockState> snapshot = walker->clone();
    check_steps(f, s, *walker, kFull - 1, kFull);
    set_all(*walker, static_cast<Mamba3State&>(*snapshot));
    check_steps(f, branch, *walker, kFull - 1, kFull + 3);
  });
}

TEST_CASE("a prefill over the end of a chunk, reports and stages do without the head start") {
  on_every_device([](Fixture& f) {
    const Sequence s(f, 205);
    for (const Index length : {2, 63, 64, 65, 130}) {
      const auto state = full_chunk(f, s);
      spoil(f, *state);
      check_call(f, s, *state, kFull, kFull + length);
      check_steps(f, s, *state, kFull + length, kFull + length + 3);
    }
    for (const bool before : {true, false}) {
      const auto state = f.state(kBatch);
      check_call(f, s, *state, 0, kFull - 1);
      f.block.set_reports(before);
      check_steps(f, s, *state, kFull - 1, kFull);
      spoil(f, *state);
      f.block.set_reports(!before);
      if (before) {
        const auto copy = f.state(kBatch);
        set_all(*copy, *state);
        check_steps(f, s, *copy, kFull, kFull + 1);
      }
      check_steps(f, s, *state, kFull, kFull + 3);
      f.block.set_reports(false);
    }
  });
}

TEST_CASE("rows of a batch at different places of their chunks keep the bits they have alone") {
  on_every_device([](Fixture& f) {
    const Floats x = draw(206, kLength * kModel, 0.0F, 1.0F);
    const Floats y = f.forward(1, kLength, x, nullptr);
    const Index places[] = {kFull - 2, kFull - 1, kFull, 2 * kFull - 1, 5};
    std::vector<std::unique_ptr<BlockState>> states;
    std::vector<BlockState*> rows;
    for (const Index place : places) {
      states.push_back(f.state(1));
      f.forward(1, place, tokens(x, 1, 0, place), states.back().get());
      rows.push_back(states.back().get());
    }
    for (Index t = 0; t < 4; ++t) {
      if (t == 1) {  // the second row has just completed its chunk: a copy takes its place, the first row leaves
        states[1] = states[1]->clone();
        rows[1] = states[1].get();
      }
      Floats in, want;
      for (const Index place : places) {
        const Floats row = tokens(x, 1, place + t, place + t + 1), expected = tokens(y, 1, place + t, place + t + 1);
        in.insert(in.end(), row.begin(), row.end());
        want.insert(want.end(), expected.begin(), expected.end());
      }
      Floats got(in.size());
      f.block.step_rows(rows, in.data(), got.data(), f.workspace);
      CHECK(bits_equal(got, want));
    }
  });
}

// Kernel calls on values of every kind: those around the end of a chunk, one behind the other.
void run_call(Executor& executor, const Mamba3Call& call) {
  Mamba3Kernels& kernels = executor.mamba3();
  kernels.prepare_tokens(call);
  kernels.accumulate_angles(call);
  kernels.rotate(call);
  kernels.weigh(call);
  kernels.scan(call);
}

TEST_CASE("the head start leaves the reference's bits, for values of every kind") {
  using mamba3_calls::Arrays, mamba3_calls::Case, mamba3_calls::Values;
  for (const Values kind : {Values::ordinary, Values::planted, Values::tiny, Values::huge}) {
    const Case last{2, 3, 1, kind, kFull - 1, true}, behind{2, 3, 1, kind, kFull, true};
    std::map<std::string, Floats> drawn_last, drawn_behind;
    // The second call; its buffer holds what the first one leaves. head_start: whether it goes on from one.
    const auto run = [&](Executor& executor, bool head_start) {
      Arrays first, second;
      first.drawn = &drawn_last;
      second.drawn = &drawn_behind;
      Mamba3Call a = make_call(last, first, false), b = make_call(behind, second, false);
      const Index size = executor.mamba3().head_start_size();
      Floats kept(static_cast<std::size_t>(a.batch * a.heads() * size), kQuietNan);
      if (head_start) a.head_start = b.head_start = kept.data();
      run_call(executor, a);
      CHECK(executor.mamba3().leaves_head_start(a) == head_start);
      b.head_start_known = head_start;
      const auto take = [&](float* to, Index to_stride, const float* from, Index from_stride, const float* rows,
                            Index width) {
        for (Index batch = 0; batch < a.batch; ++batch) {
          std::copy_n(rows + batch * kFull * to_stride, (kFull - 1) * to_stride, to + batch * kFull * to_stride);
          std::copy_n(from + batch * from_stride, width, to + (batch * kFull + kFull - 1) * to_stride);
        }
      };
      const Index h = a.heads();
      take(b.buffer.k, h * 128, a.current.k, h * 128, a.buffer.k, h * 128);
      take(b.buffer.v, h * 64, a.current.v, a.current.v_stride, a.buffer.v, h * 64);
      take(b.buffer.dt, h, a.current.dt, h, a.buffer.dt, h);
      take(b.buffer.sigma, h, a.current.sigma, h, a.buffer.sigma, h);
      take(b.buffer.adt, h, a.current.adt, h, a.buffer.adt, h);
      run_call(executor, b);
      return second;
    };
    const Arrays want = run(*make_executor("reference", {}), false);
    for (const std::string& set : instruction_sets()) {
      for (const int threads : {1, 3}) {
        const auto executor = make_executor("cpu", {.threads = threads, .instruction_set = set});
        for (const bool head_start : {false, true}) {
          const Arrays got = run(*executor, head_start);
          for (const std::string name : {"h", "skip", "gate"}) {
            INFO(set << ", threads " << threads << ", head start " << head_start << ": " << name);
            CHECK(bits_equal(got.pieces.at(name), want.pieces.at(name)));
          }
        }
      }
    }
  }
}

TEST_CASE("the plan of memory counts the head start with the state") {
  const auto executor = make_executor("cpu", {});
  const auto dry = make_dry_executor(*executor);
  CHECK(executor->mamba3().head_start_size() > 0);
  CHECK(dry->mamba3().head_start_size() == executor->mamba3().head_start_size());
}

}  // namespace
}  // namespace samba
