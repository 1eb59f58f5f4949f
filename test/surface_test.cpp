// Every name of the documented surface of blocks, sessions, tapes and stacks has a counterpart in the headers, which
// say which one it is: one check a name, on a small case.
#include <catch2/catch.hpp>

#include "block_kinds.h"
#include "samba/core/files.h"
#include "samba/train/trainer.h"
#include "small_stack.h"

namespace samba {
namespace {

using nlohmann::json;

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

}  // namespace samba
