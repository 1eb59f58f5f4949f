// Every name of the documented surface of blocks, sessions, tapes and stacks has a counterpart in the headers, which
// say which one it is: one check a name, on a small case.
#include <malloc.h>
#include <catch2/catch.hpp>
#include <optional>

#include "block_kinds.h"
#include "samba/core/files.h"
#include "samba/train/trainer.h"
#include "small_stack.h"

namespace samba {
#ifdef __SANITIZE_ADDRESS__
extern "C" std::size_t __sanitizer_get_current_allocated_bytes();  // GCC installs no header that declares it
#endif

namespace {

using nlohmann::json;

Executor& cpu() {
  static const std::unique_ptr<Executor> executor = make_executor("cpu", {.threads = 1, .instruction_set = {}});
  return *executor;
}

BlockModule make(const std::string& kind, BlockModule::Use use = BlockModule::Use::training) {
  return make_block(cpu(), small_block(kind), use);
}

Array input(const std::string& kind, Index batch = 1, Index length = 3) {
  return drawn(40, {batch, length, small_block(kind).d_model});
}

Shape piece_shape(const std::string& kind, const std::string& piece) {
  BlockModule block = make(kind);
  const auto state = block.allocate_state(2, 4);
  const ArrayMap pieces = state->pieces();
  return pieces.contains(piece) ? pieces.at(piece).shape() : Shape{-1};
}

Index counter(const std::string& kind, const std::string& name) {
  BlockModule block = make(kind);
  const auto state = block.allocate_state(2, 4);
  block.forward(input(kind, 2), *state);
  const auto counters = state->counters();
  return counters.contains(name) ? counters.at(name) : -1;
}

Shape report_shape(const std::string& kind, const std::string& name) {
  BlockModule block = make(kind);
  if (!block.reports().empty()) return {-2};
  block.forward(input(kind, 2));
  const ArrayMap reports = block.reports();
  return reports.contains(name) ? reports.at(name).shape() : Shape{-1};
}

struct Name {
  const char* documented;
  const char* header;  // which names it
  bool (*has_counterpart)();
};

// Transformer: n_heads 2, n_kv_heads 1, head_dim 6. Mamba: 20 or 64 channels, one head.
const std::vector<Name> kNames = {
    {"TransformerBlock", "blocks/module.h", [] { return make("transformer").class_name() == "TransformerBlock"; }},
    {"Mamba1Block", "blocks/module.h", [] { return make("mamba1").class_name() == "Mamba1Block"; }},
    {"Mamba2Block", "blocks/module.h", [] { return make("mamba2").class_name() == "Mamba2Block"; }},
    {"Mamba3Block", "blocks/module.h", [] { return make("mamba3").class_name() == "Mamba3Block"; }},
    {"TransformerBlockInference", "blocks/module.h",
     [] { return make("transformer", BlockModule::Use::inference).class_name() == "TransformerBlockInference"; }},
    {"Mamba1BlockInference", "blocks/module.h",
     [] { return make("mamba1", BlockModule::Use::inference).class_name() == "Mamba1BlockInference"; }},
    {"d_model", "blocks/module.h", [] { return make("mamba3").d_model() == 32; }},
    {"weight_format", "blocks/module.h", [] { return make("mamba1").weight_format() == "float32"; }},
    {"numeric_mode", "blocks/block_options.h",
     [] { return make("mamba2").options().at("numeric_mode") == "identical"; }},
    {"options", "blocks/module.h", [] { return make("transformer").options().at("n_kv_heads") == 1; }},
    {"profile", "blocks/module.h",
     [] {
       BlockModule block = make("mamba3");
       const auto state = block.allocate_state(1);
       state->set_profile("mojolearn.identical.mamba3.siso.fp32.v1");
       return block.profile() == "mojolearn.identical.mamba3.siso.fp32.v1" && state->profile() == block.profile() &&
              contains(refusal([&] { state->set_profile("mojolearn.identical.mamba3.siso.fp32.v2"); }),
                       {"value: ", ".v2"});
     }},
    {"weights", "blocks/module.h",
     [] {
       const ArrayMap weights = make("mamba1").weights();
       return weights.size() == 10 && weights.at("A_log").shape() == Shape{20, 16};
     }},
    {"device_weight", "blocks/module.h",
     [] {
       BlockModule block = make("mamba3");
       const Array copy = block.weight("dt_bias");
       std::vector<float> viewed(copy.floats().size());
       cpu().memory().copy_to_host(viewed.data(), block.device_weight("dt_bias"), copy.byte_size());
       return bits_equal(viewed, copy.floats());
     }},
    {"weight_specs", "blocks/module.h",
     [] {
       return make("transformer").weight_specs().size() == 9 && make("mamba2").weight_specs()[0].shape == Shape{32};
     }},
    {"parameter_count", "blocks/module.h",
     [] { return make("transformer").parameter_count() == 12 + 12 + 144 + 72 + 72 + 144 + 3 * 120; }},
    {"allocate_state", "blocks/module.h", [] { return make("transformer").allocate_state(2, 7)->batch_size() == 2; }},
    {"forward", "blocks/module.h",
     [] {
       return make("mamba1").forward(input("mamba1")).shape() == Shape{1, 3, 10};
     }},
    {"lengths", "blocks/module.h",
     [] {
       const std::vector<Index> lengths = {2};
       return to_bits(make("mamba2").forward(input("mamba2"), lengths).floats()[2 * 32]) == 0;
     }},
    {"step", "blocks/module.h",
     [] {
       BlockModule block = make("mamba3");
       const auto state = block.allocate_state(2);
       return block.step(drawn(41, {2, 32}), *state).shape() == Shape{2, 1, 32};
     }},
    {"backward", "blocks/module.h",
     [] {
       const NamedGradients gradients = make("mamba2").backward(input("mamba2"), input("mamba2"));
       return gradients.names.size() == 10 && gradients.names.front() == "x" &&
              gradients.names.back() == "out_proj.weight";
     }},
    {"forward_with_tape", "blocks/module.h",
     [] {
       BlockModule block = make("mamba3");
       const BlockModule::Taped taped = block.forward_with_tape(input("mamba3"));
       return bits_equal(taped.y.floats(), block.forward(input("mamba3")).floats());
     }},
    {"backward_from_tape", "blocks/module.h",
     [] {
       BlockModule block = make("mamba3");
       const Array x = input("mamba3");
       const NamedGradients want = block.backward(x, x);
       return same(block.backward_from_tape(*block.forward_with_tape(x).tape, x), want);
     }},
    {"retained", "blocks/module.h",
     [] { return make("transformer").forward_with_tape(input("transformer")).tape->retained(); }},
    {"stage_bytes", "blocks/module.h",
     [] {
       const Index m = 3, dm = 12, qw = 12, kw = 6, hd = 6, wide = 10;
       const Index floats = 7 * m * dm + 2 * m + 3 * m * qw + 5 * m * kw + hd / 2 + 2 * 3 * (hd / 2) + 4 * 2 * 9 +
                            2 * 2 * 3 + 4 * m * wide;
       return make("transformer").forward_with_tape(input("transformer")).tape->stage_bytes() == 4 * floats;
     }},
    {"k_cache", "blocks/module.h", [] { return piece_shape("transformer", "k_cache") == Shape{2 * 1 * 4 * 6}; }},
    {"v_cache", "blocks/module.h", [] { return piece_shape("transformer", "v_cache") == Shape{2 * 1 * 4 * 6}; }},
    {"conv_window", "blocks/module.h",
     [] {
       return piece_shape("mamba1", "conv_window") == Shape{2, 20, 4} &&
              piece_shape("mamba2", "conv_window") == Shape{2, 320, 4};
     }},
    {"h;", "blocks/module.h",
     [] {
       return piece_shape("mamba1", "h") == Shape{2, 20, 16} && piece_shape("mamba2", "h") == Shape{2, 1, 64, 128} &&
              piece_shape("mamba3", "h") == Shape{2, 1, 64, 128};
     }},
    {"buffer_xbc", "blocks/module.h",
     [] {
       return piece_shape("mamba2", "buffer_xbc") == Shape{2, 256, 320};
     }},
    {"buffer_dtraw", "blocks/module.h",
     [] {
       return piece_shape("mamba2", "buffer_dtraw") == Shape{2, 256, 1};
     }},
    {"theta", "blocks/module.h",
     [] {
       return piece_shape("mamba3", "theta") == Shape{2, 1, 32};
     }},
    {"buffer_qrot", "blocks/module.h",
     [] {
       return piece_shape("mamba3", "buffer_qrot") == Shape{2, 64, 1, 128};
     }},
    {"buffer_krot", "blocks/module.h",
     [] {
       return piece_shape("mamba3", "buffer_krot") == Shape{2, 64, 1, 128};
     }},
    {"buffer_v", "blocks/module.h",
     [] {
       return piece_shape("mamba3", "buffer_v") == Shape{2, 64, 1, 64};
     }},
    {"buffer_dt", "blocks/module.h",
     [] {
       return piece_shape("mamba3", "buffer_dt") == Shape{2, 64, 1};
     }},
    {"buffer_sig", "blocks/module.h",
     [] {
       return piece_shape("mamba3", "buffer_sig") == Shape{2, 64, 1};
     }},
    {"buffer_adt", "blocks/module.h",
     [] {
       return piece_shape("mamba3", "buffer_adt") == Shape{2, 64, 1};
     }},
    {"pending_k", "blocks/module.h",
     [] {
       return piece_shape("mamba3", "pending_k") == Shape{2, 1, 128};
     }},
    {"pending_v", "blocks/module.h",
     [] {
       return piece_shape("mamba3", "pending_v") == Shape{2, 1, 64};
     }},
    {"affine_boundary", "blocks/module.h", [] { return piece_shape("mamba1", "affine_boundary") == Shape{-1}; }},
    {"affine_a", "blocks/module.h", [] { return piece_shape("mamba1", "affine_a") == Shape{-1}; }},
    {"affine_b", "blocks/module.h", [] { return piece_shape("mamba1", "affine_b") == Shape{-1}; }},
    {"cached_tokens", "blocks/module.h", [] { return counter("transformer", "cached_tokens") == 3; }},
    {"max_tokens", "blocks/module.h", [] { return counter("transformer", "max_tokens") == 4; }},
    {"window", "blocks/module.h", [] { return counter("transformer", "window") == 0; }},
    {"n_kv_heads", "blocks/module.h", [] { return counter("transformer", "n_kv_heads") == 1; }},
    {"head_dim", "blocks/module.h", [] { return counter("transformer", "head_dim") == 6; }},
    {"absolute_position", "blocks/module.h", [] { return counter("mamba1", "absolute_position") == 0; }},
    {"buffered_tokens", "blocks/module.h",
     [] { return counter("mamba2", "buffered_tokens") == 3 && counter("mamba3", "buffered_tokens") == 3; }},
    {"pending", "blocks/module.h", [] { return counter("mamba3", "pending") == 0; }},
    {"profile_id", "blocks/module.h",
     [] {
       BlockModule block = make("mamba1");
       const auto state = block.allocate_state(1);
       state->set({}, {{"profile_id", 2}});
       return counter("mamba1", "profile_id") == 1 && contains(refusal([&] {
                                                                 block.step(drawn(41, {1, 10}), *state);
                                                               }),
                                                               {"value: ", "profile", "2"});
     }},
    {"keys", "blocks/module.h",
     [] {
       BlockModule block = make("transformer");
       const auto state = block.allocate_state(1, 4);
       block.forward(input("transformer"), *state);
       return state->keys().shape() == Shape{1, 1, 3, 6};
     }},
    {"values", "blocks/module.h",
     [] {
       BlockModule block = make("transformer");
       const auto state = block.allocate_state(1, 4);
       block.forward(input("transformer"), *state);
       return state->values().shape() == Shape{1, 1, 3, 6};
     }},
    {"set_input_states", "blocks/module.h",
     [] {
       BlockModule block = make("mamba3");
       const auto state = block.allocate_state(1);
       state->set_input_states(drawn(1, {1, 1, 32}), drawn(2, {1, 1, 64, 128}), drawn(3, {1, 1, 128}),
                               drawn(4, {1, 1, 64}));
       return state->counters().at("pending") == 1 && block.step(drawn(41, {1, 32}), *state).size() == 32;
     }},
    {"h_last_", "blocks/module.h",
     [] {
       return report_shape("mamba2", "h_last") == Shape{2, 1, 64, 128} &&
              report_shape("mamba3", "h_last") == Shape{2, 1, 64, 128};
     }},
    {"k_last", "blocks/module.h",
     [] {
       return report_shape("mamba3", "k_last") == Shape{2, 1, 128};
     }},
    {"v_last", "blocks/module.h",
     [] {
       return report_shape("mamba3", "v_last") == Shape{2, 1, 64};
     }},
    {"theta_last", "blocks/module.h",
     [] {
       return report_shape("mamba3", "theta_last") == Shape{2, 1, 32};
     }},
    {"decode_session(state)", "blocks/module.h",
     [] {
       BlockModule block = make("mamba1");
       const auto state = block.allocate_state(1);
       return block.open_session(*state).open();
     }},
    {"is_open", "blocks/module.h",
     [] {
       BlockModule block = make("mamba1");
       const auto state = block.allocate_state(1);
       DecodeSession session = block.open_session(*state);
       const bool before = session.open();
       session.close();
       return before && !session.open();
     }},
    {"ModuleState state()", "blocks/module.h",
     [] {
       BlockModule block = make("transformer");
       const auto state = block.allocate_state(1, 4);
       DecodeSession session = block.open_session(*state);
       session.step(drawn(41, {1, 12}));
       session.sync_state();
       return session.state().counters() == state->counters() && session.state().counters().at("cached_tokens") == 1;
     }},
    {"sync_state", "blocks/module.h",
     [] {
       BlockModule block = make("mamba3");
       const auto state = block.allocate_state(1);
       DecodeSession session = block.open_session(*state);
       session.step(drawn(41, {1, 32}));
       const bool stale = state->counters().at("buffered_tokens") == 0;
       session.sync_state();
       return stale && session.open() && state->counters().at("buffered_tokens") == 1;
     }},
    {"load_state", "blocks/module.h",
     [] {
       BlockModule block = make("mamba2");
       const auto state = block.allocate_state(1);
       DecodeSession session = block.open_session(*state);
       const Array first = session.step(drawn(41, {1, 32}));
       session.load_state();  // undoes the step
       return bits_equal(session.step(drawn(41, {1, 32})).floats(), first.floats());
     }},
    {"close", "blocks/module.h",
     [] {
       BlockModule block = make("mamba2");
       const auto state = block.allocate_state(1);
       DecodeSession session = block.open_session(*state);
       session.step(drawn(41, {1, 32}));
       session.close();
       session.close();
       return state->counters().at("buffered_tokens") == 1;
     }},
    {"discard", "blocks/module.h",
     [] {
       BlockModule block = make("mamba2");
       const auto state = block.allocate_state(1);
       DecodeSession session = block.open_session(*state);
       session.step(drawn(41, {1, 32}));
       session.discard();
       return state->counters().at("buffered_tokens") == 0 && !session.open();
     }},
    {"repr", "blocks/module.h",
     [] {
       const auto text = [](const std::string& kind) {
         BlockModule block = make(kind);
         const auto state = block.allocate_state(2, 4);
         DecodeSession session = block.open_session(*state);
         const std::string open = session.describe();
         session.close();
         return open + " " + session.describe();
       };
       return text("transformer") ==
                  "TransformerDecodeSession(open=true, cached_tokens=0) "
                  "TransformerDecodeSession(open=false, cached_tokens=0)" &&
              text("mamba1") == "Mamba1DecodeSession(open=true, rows=2) Mamba1DecodeSession(open=false, rows=2)" &&
              text("mamba2") == "Mamba2DecodeSession(open=true, rows=2) Mamba2DecodeSession(open=false, rows=2)" &&
              text("mamba3") == "Mamba3DecodeSession(open=true, rows=2) Mamba3DecodeSession(open=false, rows=2)";
     }},
    {"install_owned_weights", "blocks/module.h",
     [] {
       BlockModule block = make("mamba3");
       return block.install_owned_weights() == 1 && block.install_owned_weights() == 2;
     }},
    {"release_owned_weights", "blocks/module.h",
     [] {
       BlockModule block = make("mamba3");
       block.install_owned_weights();
       block.release_owned_weights();
       block.release_owned_weights();
       return contains(refusal([&] { block.export_owned_weights(); }), {"value: ", "no owned weights"});
     }},
    {"export_owned_weights", "blocks/module.h",
     [] {
       BlockModule block = make("mamba3");
       block.install_owned_weights();
       const NamedArrays owned = block.export_owned_weights();
       return owned.names.size() == 9 && owned.names.front() == "block_norm.weight" &&
              owned.names.back() == "out_proj.weight";
     }},
    {"session_info", "blocks/module.h", [] { return !make("mamba3").session_info().has_value(); }},
    {"SambaConfig", "model/samba_config.h", [] { return small_config().n_kv_heads == 2; }},
    {"SambaStack", "model/samba_stack.h",
     [] {
       Generator generator(1);
       return SambaStack(cpu(), small_config(), generator).registry().find("layers.0.D") > 0;
     }},
    {"SambaInference", "model/samba_stack.h",
     [] {
       Generator generator(1);
       SambaStack stack(cpu(), small_config(), generator, SambaStack::Use::inference);
       const Array ids = token_array(1, 4, 11, 0);
       return contains(refusal([&] { stack.loss(ids, ids); }),
                       {"unsupported: ", "loss", "inference is forward only"}) &&
              contains(refusal([&] { stack.loss_and_grads(ids, ids); }),
                       {"unsupported: ", "inference is forward only"}) &&
              stack.forward(ids).shape() == Shape{1, 4, 11};
     }},
    {"SambaState", "model/samba_stack.h",
     [] {
       Generator generator(1);
       SambaStack stack(cpu(), small_config(), generator);
       const auto state = stack.allocate_state(2, 5);
       return state->batch_size() == 2 && state->max_tokens() == 5 && state->layers() == 2;
     }},
    {"loss_and_grads", "model/samba_stack.h",
     [] {
       Generator generator(1);
       SambaStack stack(cpu(), small_config(), generator);
       const Array ids = token_array(1, 4, 11, 0);
       return stack.loss_and_grads(ids, ids).gradients.size() == stack.registry().total();
     }},
    {"train_step", "train/trainer.h",
     [] {
       const auto trainer = SambaTrainer::create(cpu(), small_config(), 1);
       const Array ids = token_array(1, 4, 11, 0);
       return trainer->train_step(ids, ids).step == 1;
     }},
};

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

TEST_CASE("Every documented name has a counterpart, and the header says which") {
  std::map<std::string, std::string> headers;
  for (const Name& name : kNames) {
    std::string& text = headers[name.header];
    if (text.empty()) text = read_file(Path(SAMBA_SOURCE_DIR) / "lib" / name.header);
    INFO(name.documented);
    CHECK(text.find(name.documented) != std::string::npos);
    CHECK(name.has_counterpart());
  }
}

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
