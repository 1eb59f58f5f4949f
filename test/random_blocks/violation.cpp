#include "violation.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "bits.h"
#include "block_fixture.h"
#include "samba/blocks/module.h"

namespace samba {

namespace {

struct Violation {
  std::string text;
};

Executor& reference() {
  static const auto executor = make_executor("reference");
  return *executor;
}

// One executor for each instruction set and 1, 2, 3 threads: [set][threads - 1].
const std::vector<std::vector<std::unique_ptr<Executor>>>& cpus() {
  static const auto executors = [] {
    std::vector<std::vector<std::unique_ptr<Executor>>> made;
    for (const std::string& set : instruction_sets()) {
      made.emplace_back();
      for (const int threads : {1, 2, 3}) made.back().push_back(make_executor("cpu", {threads, set}));
    }
    return made;
  }();
  return executors;
}

std::string executor_text(const Executor& executor) {
  return executor.name() + " " + executor.instruction_set() + ", " + std::to_string(executor.threads()) + " threads";
}

void require_same(const std::string& what, const Array& got, const Array& want) {
  if (got.shape() != want.shape()) {
    throw Violation{what + ": the shape is " + shape_text(got.shape()) + ", not " + shape_text(want.shape())};
  }
  for (std::size_t i = 0; i < want.floats().size(); ++i) {
    const float a = got.floats()[i], b = want.floats()[i];
    if (same_bits(a, b)) continue;
    throw Violation{what + ": element " + std::to_string(i) + " of " + shape_text(want.shape()) + " is " +
                    std::to_string(a) + " (" + std::to_string(to_bits(a)) + "), not " + std::to_string(b) + " (" +
                    std::to_string(to_bits(b)) + ")"};
  }
}

void require_same(const std::string& what, const ArrayMap& got, const ArrayMap& want) {
  for (const auto& [name, array] : want) require_same(what + " " + name, got.at(name), array);
}

// The values of an array at an address that is not a multiple of a vector.
class Unaligned {
 public:
  explicit Unaligned(const Array& array) : shape_(array.shape()), values_(array.floats().size() + 1) {
    std::copy(array.floats().begin(), array.floats().end(), values_.begin() + 1);
  }
  operator ConstArray() const { return {DType::float32, shape_, values_.data() + 1}; }  // NOLINT

 private:
  Shape shape_;
  std::vector<float> values_;
};

Array joined(const std::vector<Array>& pieces) {
  Shape shape = pieces.front().shape();
  shape[1] = 0;
  for (const Array& piece : pieces) shape[1] += piece.shape()[1];
  Array whole(DType::float32, shape);
  for (Index b = 0; b < shape[0]; ++b) {
    float* to = whole.floats().data() + b * shape[1] * shape[2];
    for (const Array& piece : pieces) {
      const Index run = piece.shape()[1] * shape[2];
      to = std::copy_n(piece.floats().data() + b * run, run, to);
    }
  }
  return whole;
}

using Counters = std::map<std::string, Index>;

// The pieces of a state without the buffered rows past the counter, which keep what they held before (spec 40 section
// 6.1).
ArrayMap held(const ArrayMap& pieces, const Counters& counters) {
  ArrayMap held;
  for (const auto& [name, piece] : pieces) {
    if (!name.starts_with("buffer_")) {
      held.emplace(name, Array::from_floats(piece.shape(), piece.floats()));
      continue;
    }
    Shape shape = piece.shape();
    const Index width = element_count(shape) / (shape[0] * shape[1]);
    const Array rows = Array::from_floats({shape[0], shape[1], width}, piece.floats());
    held.emplace(name, positions(rows, 0, counters.at("buffered_tokens")));
  }
  return held;
}

bool offers_tapes(const std::string& kind) { return kind == "transformer" || kind == "mamba3"; }

class Properties {
 public:
  explicit Properties(const BlockCase& block)
      : block_(block), weights_(block.weights()), x_(block.input()), dy_(block.grad_output()) {}

  void check() {
    const Results want = results(reference());
    require_same("reference: the pieces of a sequence, beside the whole", want.in_pieces, want.whole);
    if (want.counters != want.whole_counters) throw Violation{"reference: counters after the pieces"};
    require_same("reference: the state after the pieces, beside that after the whole,", held(want.state, want.counters),
                 held(want.whole_state, want.counters));
    for (std::size_t set = 0; set < cpus().size(); ++set) {
      Executor& cpu = *cpus()[set][(block_.seed + set) % 3];
      const Results got = results(cpu);
      const std::string who = executor_text(cpu) + ", beside the reference: ";
      require_same(who + "forward", got.whole, want.whole);
      require_same(who + "the pieces", got.in_pieces, want.in_pieces);
      require_same(who + "the state after the pieces,", got.state, want.state);
      require_same(who + "the ragged batch", got.ragged, want.ragged);
      require_same(who + "the gradient of", got.gradients, want.gradients);
    }
    Executor& cpu = *cpus()[block_.seed / 3 % cpus().size()][block_.seed % 3];
    who_ = executor_text(cpu) + ": ";
    BlockModule module = make_module(cpu, weights_);
    check_rows(module, want);
    check_session(module, want);
    if (block_.differentiable && offers_tapes(block_.kind)) check_tapes(module, want);
    check_packed(cpu);
  }

 private:
  struct Results {
    Array whole, in_pieces, ragged;
    ArrayMap state, whole_state, gradients;
    Counters counters, whole_counters;
  };

  BlockModule make_module(Executor& executor, const ConstWeightMap& weights) const {
    BlockModule module(executor, block_.kind, block_.options, weights);
    module.admit_extended_gradients();
    return module;
  }

  std::unique_ptr<ModuleState> new_state(BlockModule& module) const {
    return module.allocate_state(block_.batch, block_.length() + 3);
  }

  // body(piece of x) for the pieces of the sequence, results joined.
  template <class Body>
  Array in_pieces(Body&& body) const {
    std::vector<Array> outputs;
    Index first = 0;
    for (const Index length : block_.pieces) {
      outputs.push_back(body(positions(x_, first, first + length)));
      first += length;
    }
    return joined(outputs);
  }

  Array run_pieces(BlockModule& module, ModuleState& state) const {
    return in_pieces([&](const Array& piece) {
      return piece.shape()[1] == 1 ? module.step(piece, state) : module.forward(Unaligned(piece), state);
    });
  }

  // x with NaN behind each row's end.
  Array padded() const {
    Array x = Array::from_floats(x_.shape(), x_.floats());
    for (Index b = 0; b < block_.batch; ++b) {
      const Index real = block_.lengths[static_cast<std::size_t>(b)];
      const Index from = (b * block_.length() + real) * block_.d_model;
      std::fill_n(x.floats().begin() + from, (block_.length() - real) * block_.d_model, kQuietNan);
    }
    return x;
  }

  Results results(Executor& executor) const {
    Results results;
    BlockModule module = make_module(executor, weights_);
    results.whole = module.forward(Unaligned(x_));
    const auto whole_state = new_state(module);
    require_same(executor_text(executor) + ": forward on a new state, beside forward", module.forward(x_, *whole_state),
                 results.whole);
    results.whole_state = whole_state->pieces();
    results.whole_counters = whole_state->counters();
    const auto state = new_state(module);
    results.in_pieces = run_pieces(module, *state);
    results.state = state->pieces();
    results.counters = state->counters();
    results.ragged = module.forward(padded(), block_.lengths);
    if (block_.differentiable) results.gradients = module.backward(Unaligned(x_), Unaligned(dy_)).arrays;
    return results;
  }

  void check_rows(BlockModule& module, const Results& want) const {
    for (Index b = 0; b < block_.batch; ++b) {
      const Array x = batch_row(x_, b);
      require_same(who_ + "a batch row alone", module.forward(x), batch_row(want.whole, b));
      const Index real = block_.lengths[static_cast<std::size_t>(b)];
      const Array row = batch_row(want.ragged, b);
      require_same(who_ + "a ragged row alone", module.forward(positions(x, 0, real)), positions(row, 0, real));
      require_same(who_ + "the padding of a ragged row", positions(row, real, block_.length()),
                   Array::zeros({1, block_.length() - real, block_.d_model}));
    }
  }

  void check_session(BlockModule& module, const Results& want) const {
    const auto state = new_state(module);
    DecodeSession session = module.open_session(*state);
    const bool takes_chunks = block_.kind == "transformer";
    const Array got = in_pieces([&](const Array& piece) {
      if (takes_chunks) return session.forward(piece);
      std::vector<Array> tokens;
      for (Index t = 0; t < piece.shape()[1]; ++t) tokens.push_back(session.step(positions(piece, t, t + 1)));
      return joined(tokens);
    });
    session.close();
    require_same(who_ + "a decode session", got, want.whole);
    require_same(who_ + "the state that a session leaves,", held(state->pieces(), want.counters),
                 held(want.whole_state, want.counters));
  }

  void check_tapes(BlockModule& module, const Results& want) const {
    for (const std::int64_t budget : {std::int64_t{0}, BlockModule::kDefaultActivationBudget}) {
      auto taped = module.forward_with_tape(x_, budget);
      const std::string what = who_ + "a tape of budget " + std::to_string(budget);
      require_same(what + ", forward", taped.y, want.whole);
      require_same(what + ", the gradient of", module.backward_from_tape(*taped.tape, dy_).arrays, want.gradients);
    }
  }

  void check_packed(Executor& executor) const {
    const WeightFormat format = block_.seed % 2 == 0 ? WeightFormat::bfloat16 : WeightFormat::int8;
    const WeightMap stored = pack(weights_, format);
    BlockModule packed = make_module(executor, stored);
    BlockModule plain = make_module(executor, expand(stored));
    const std::string what = who_ + std::string(weight_format_name(format)) + " weights, beside the expanded ones: ";
    require_same(what + "forward", packed.forward(x_), plain.forward(x_));
    const auto packed_state = new_state(packed), plain_state = new_state(plain);
    require_same(what + "the pieces", run_pieces(packed, *packed_state), run_pieces(plain, *plain_state));
    if (!block_.differentiable) return;
    require_same(what + "the gradient of", packed.backward(x_, dy_).arrays, plain.backward(x_, dy_).arrays);
  }

  const BlockCase& block_;
  ArrayMap weights_;
  Array x_, dy_;
  std::string who_;
};

}  // namespace

std::string violation(const BlockCase& block) {
  try {
    Properties(block).check();
  } catch (const Violation& found) {
    return found.text;
  } catch (const Error& error) {
    return std::string("refused: ") + error.what();
  }
  return {};
}

}  // namespace samba
