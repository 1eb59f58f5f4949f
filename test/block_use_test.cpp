// How blocks and stacks may be used beside the plain call: for inference only, not from inside a call, with reports on
// request, with owned weights; and how their refusals begin.
#include <malloc.h>

#include <catch2/catch.hpp>
#include <optional>

#include "block_kinds.h"
#include "samba/train/trainer.h"
#include "small_stack.h"

namespace samba {

#ifdef __SANITIZE_ADDRESS__
extern "C" std::size_t __sanitizer_get_current_allocated_bytes();  // GCC installs no header that declares it
#endif

namespace {

using nlohmann::json;

// Bytes that the process holds on its heap.
std::size_t held_bytes() {
#ifdef __SANITIZE_ADDRESS__  // mallinfo2 knows nothing of its allocator
  return __sanitizer_get_current_allocated_bytes();
#else
  const auto info = mallinfo2();
  return info.uordblks + info.hblkhd;
#endif
}

// Calls the module again from inside a call of it.
class Reenter final : public StageRecorder {
 public:
  explicit Reenter(std::function<void()> call) : call_(std::move(call)) {}
  void record(std::string_view, const Shape&, const float*) override {
    if (words.empty()) words = refusal(call_);
  }
  std::string words;

 private:
  std::function<void()> call_;
};

}  // namespace

TEST_CASE("An inference-only block has the same bits, refuses the gradient and takes no memory for it") {
  for (const SmallBlock& small : small_blocks()) {
    INFO(small.kind);
    BlockModule block = make(small.kind);
    BlockModule inference = make(small.kind, BlockModule::Use::inference);
    const Array x = drawn(42, {2, 5, small.d_model});
    CHECK(bits_equal(inference.forward(x).floats(), block.forward(x).floats()));
    const auto state = inference.allocate_state(2, 8);
    const auto other = block.allocate_state(2, 8);
    CHECK(bits_equal(inference.step(positions(x, 0, 1), *state).floats(),
                     block.step(positions(x, 0, 1), *other).floats()));
    CHECK(bits_equal(inference.open_session(*state).step(positions(x, 1, 2)).floats(),
                     block.open_session(*other).step(positions(x, 1, 2)).floats()));
    const std::string name = inference.class_name();
    CHECK(contains(refusal([&] { inference.backward(x, x); }),
                   {"unsupported: ", (name + ".backward").c_str(), "inference is forward only"}));
    CHECK(contains(refusal([&] { inference.forward_with_tape(x); }),
                   {"unsupported: ", (name + ".forward_with_tape").c_str(), "inference is forward only"}));
    if (small.kind == "transformer" || small.kind == "mamba3") {
      const BlockModule::Taped taped = block.forward_with_tape(x);
      CHECK(contains(refusal([&] { inference.backward_from_tape(*taped.tape, x); }),
                     {"unsupported: ", "inference is forward only"}));
    }
  }

  // d_model 256: the weights are most of what is held.
  SmallBlock wide = small_block("mamba3");
  wide.d_model = 256;
  const ArrayMap weights = weights_of(wide);
  const Array x = drawn(43, {1, 2, 256});
  BlockModule inference(cpu(), wide.kind, wide.options, views(weights), BlockModule::Use::inference);
  BlockModule training(cpu(), wide.kind, wide.options, views(weights));
  inference.forward(x);
  training.forward(x);
  const auto weight_bytes = static_cast<std::size_t>(training.parameter_count()) * sizeof(float);
  const std::size_t before = held_bytes();
  CHECK_FALSE(refusal([&] { inference.backward(x, x); }).empty());
  CHECK(held_bytes() - before < weight_bytes / 100);
  training.backward(x, x);
  CHECK(held_bytes() - before > weight_bytes);
}

TEST_CASE("An inference-only stack holds neither gradients nor moments and refuses training") {
  SambaConfigFields fields;
  fields.vocab = 20000;
  fields.d_model = 64;
  fields.layers = {"mamba3"};
  const SambaConfig config = make_config(fields);
  const Array ids = token_array(1, 2, 11, 0);
  Generator generator(3);
  const std::size_t start = held_bytes();
  auto inference = std::make_unique<SambaStack>(cpu(), config, generator, SambaStack::Use::inference);
  inference->forward(ids);
  const std::size_t held_for_inference = held_bytes() - start;
  const auto parameter_bytes = static_cast<std::size_t>(inference->registry().total()) * sizeof(float);

  const std::size_t second = held_bytes();
  const auto trainer = SambaTrainer::create(cpu(), config, 3);
  trainer->stack().forward(ids);
  CHECK(held_bytes() - second > held_for_inference + 2 * parameter_bytes);

  const std::size_t before = held_bytes();
  CHECK(contains(refusal([&] { inference->loss_and_grads(ids, ids); }), {"inference is forward only"}));
  CHECK(held_bytes() - before < parameter_bytes / 100);
  CHECK(contains(refusal([&] { SambaTrainer(std::move(inference), generator); }),
                 {"unsupported: ", "inference is forward only"}));
}

TEST_CASE("A call from inside a call is refused: modules, sessions, states, stacks") {
  for (const SmallBlock& small : small_blocks()) {
    INFO(small.kind);
    BlockModule block = make(small.kind);
    BlockModule other = make(small.kind);
    const Array x = drawn(44, {1, 3, small.d_model});
    const Array token = drawn(45, {1, small.d_model});
    const auto state = block.allocate_state(1, 64);
    const auto session_state = block.allocate_state(1, 64);
    DecodeSession session = block.open_session(*session_state);
    const auto inside = [&](const std::function<void()>& outer, const std::function<void()>& inner) {
      Reenter recorder(inner);
      block.set_stage_recorder(&recorder);
      outer();
      block.set_stage_recorder(nullptr);
      return recorder.words;
    };
    const std::function<void()> forward = [&] { block.forward(x, *state); };
    CHECK(contains(inside(forward, [&] { block.forward(x); }), {"value: ", "middle of another call"}));
    CHECK(contains(inside(forward, [&] { block.backward(x, x); }), {"middle of another call"}));
    CHECK(contains(inside(forward, [&] { block.set_weight("D", x); }), {"middle of another call"}));
    CHECK(contains(inside(forward, [&] { session.step(token); }), {"middle of another call"}));
    CHECK(
        contains(inside(forward, [&] { other.step(token, *state); }), {"the state is in the middle of another call"}));
    CHECK(contains(inside(forward, [&] { state->set({}, {}); }), {"the state is in the middle of another call"}));
    const std::function<void()> step = [&] { session.step(token); };
    CHECK(contains(inside(step, [&] { session.step(token); }), {"middle of another call"}));
    CHECK(contains(inside(step, [&] { session.close(); }), {"middle of another call"}));
    CHECK(contains(inside(step, [&] { block.step(token, *state); }), {"middle of another call"}));
    // Nothing is left behind.
    const auto fresh = block.allocate_state(1, 64);
    CHECK(refusal([&] { block.step(token, *fresh); }).empty());
    CHECK(session.open());
  }

  Generator generator(5);
  SambaStack stack(cpu(), small_config(), generator);
  const Array ids = token_array(1, 3, 11, 0);
  Reenter recorder([&] { stack.forward(ids); });
  stack.set_stage_recorder(&recorder);
  stack.forward(ids);
  CHECK(contains(recorder.words, {"value: ", "the stack is in the middle of another call"}));
  Reenter gradient([&] { stack.loss_and_grads(ids, ids); });
  stack.set_stage_recorder(&gradient);
  stack.loss_and_grads(ids, ids);
  CHECK(contains(gradient.words, {"the stack is in the middle of another call"}));
  stack.set_stage_recorder(nullptr);
  CHECK(refusal([&] { stack.forward(ids); }).empty());
}

TEST_CASE("Reports are made unless nobody wants them") {
  for (const char* kind : {"mamba2", "mamba3"}) {
    INFO(kind);
    BlockModule block = make(kind);
    const Array x = input(kind, 2);
    const Array y = block.forward(x);
    const Array h_last = block.reports().at("h_last");
    block.set_reports(false);
    CHECK(bits_equal(block.forward(x).floats(), y.floats()));
    CHECK(block.reports().empty());
    const auto state = block.allocate_state(2);
    DecodeSession session = block.open_session(*state);
    session.step(positions(x, 0, 1));
    CHECK(block.reports().empty());
    block.set_reports(true);
    session.step(positions(x, 1, 2));
    session.step(positions(x, 2, 3));
    CHECK(bits_equal(block.reports().at("h_last").floats(), h_last.floats()));
  }
}

TEST_CASE("Owned weights serve the calls without a state; session_info counts them") {
  BlockModule block = make("mamba3");
  BlockModule twin = make("mamba3");
  const Array x = input("mamba3");
  const Array old = block.forward(x);
  const NamedGradients old_gradients = block.backward(x, x);
  const Array first = positions(old, 0, 1);
  CHECK(block.install_owned_weights() == 1);
  Array edited = block.weight("D");
  for (float& value : edited.floats()) value += 1.0F;
  block.set_weight("D", edited);
  twin.set_weight("D", edited);

  CHECK(bits_equal(block.forward(x).floats(), old.floats()));
  CHECK(same(block.backward(x, x), old_gradients));
  CHECK(same(block.backward_from_tape(*block.forward_with_tape(x).tape, x), old_gradients));
  const auto state = block.allocate_state(1);
  const auto other = block.allocate_state(1);
  CHECK(differ(block.step(positions(x, 0, 1), *state).floats(), first.floats()));
  const auto of_twin = twin.allocate_state(1);
  CHECK(bits_equal(block.open_session(*other).step(positions(x, 0, 1)).floats(),
                   twin.step(positions(x, 0, 1), *of_twin).floats()));
  CHECK(block.install_owned_weights() == 2);
  CHECK(bits_equal(block.forward(x).floats(), twin.forward(x).floats()));
  Array broken = edited;
  broken.floats()[0] = kQuietNan;
  block.set_weight("D", broken);
  CHECK(contains(refusal([&] { block.install_owned_weights(); }), {"value: ", "NaN in D at flat index 0"}));
  CHECK(bits_equal(block.forward(x).floats(), twin.forward(x).floats()));
  block.release_owned_weights();
  CHECK(contains(refusal([&] { block.forward(x); }), {"NaN in D"}));

  BlockModule counted = make("mamba3");
  const auto its_state = counted.allocate_state(1);
  counted.step(positions(x, 0, 1), *its_state);
  CHECK_FALSE(counted.session_info().has_value());
  counted.forward(x);
  CHECK(counted.session_info() == SessionInfo{1, 0, 0, 0, 0, 0});
  counted.backward(x, x);
  CHECK(counted.session_info() == SessionInfo{1, 0, 1, 0, 1, 0});
  counted.set_weight("D", edited);
  counted.forward(x);
  CHECK(counted.session_info() == SessionInfo{2, 1, 1, 0, 1, 0});

  for (const char* kind : {"transformer", "mamba1", "mamba2"}) {
    BlockModule without = make(kind);
    CHECK(contains(refusal([&] { without.install_owned_weights(); }), {"unsupported: ", kind, "mamba3"}));
    CHECK(contains(refusal([&] { without.session_info(); }), {"unsupported: ", kind, "mamba3"}));
  }
}

TEST_CASE("A refusal begins with the public class and method") {
  BlockModule block = make("mamba1");
  const auto state = block.allocate_state(1);
  const Array wrong = drawn(46, {1, 1, 3});
  CHECK(contains(refusal([&] { block.forward(wrong); }), {"value: Mamba1Block.forward: ", "d_model 10", "3"}));
  CHECK(contains(refusal([&] { block.step(wrong, *state); }), {"value: Mamba1Block.step: "}));
  CHECK(contains(refusal([&] { block.backward(wrong, wrong); }), {"value: Mamba1Block.backward: "}));
  CHECK(
      contains(refusal([&] { block.allocate_state(0); }), {"value: Mamba1Block.allocate_state: ", "batch_size", "0"}));
  DecodeSession session = block.open_session(*state);
  CHECK(contains(refusal([&] { block.open_session(*state); }), {"value: Mamba1Block.open_session: ", "session"}));
  CHECK(contains(refusal([&] { session.step(wrong); }), {"value: Mamba1DecodeSession.step: "}));
  session.close();
  CHECK(contains(refusal([&] { session.sync_state(); }), {"Mamba1DecodeSession.sync_state: the session is closed"}));
  CHECK(contains(refusal([&] { BlockModule(cpu(), "mamba2", json::object(), {}); }),
                 {"value: Mamba2Block: ", "missing"}));
}

}  // namespace samba
