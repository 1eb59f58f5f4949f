// The blocks mean what the decoder layers of Hugging Face transformers mean: test/huggingface holds layers of
// public model families recorded in float64 by scripts/record_huggingface.py (docs/huggingface_parity.md).
//
// How the meanings meet:
// - Rotary pairs: these families rotate column j with column j + half of a head (`rotate_half`), as spec 20 section 2
//   does; their checkpoints need no permutation. The recorded layers hold the rotated keys in their cache, as here.
// - A sliding window W covers the last W positions, the token itself included, in both. transformers keeps W - 1 of
// them
//   in its cache (the next token brings its own), samba W.
// - conv1d.weight is (channels, 1, 4), oldest tap first, in both; the cached window holds the last four inputs of the
//   convolution, of which the oldest is never read again.
// - dt: the bias is added before softplus; Mamba-2 then clamps it to time_step_limit. One-token calls of transformers
//   leave the clamp out, so the file with active limits has no decode.
// - Mamba-2: the gate multiplies before the gated norm (MambaRMSNormGated), one group; recurrent_state is the state
//   after the last token, samba's report h_last, not the state entering the open chunk.
// - A_log, D, the split of in_proj (hidden, gate | gate, xBC, dt) and of x_proj (dt, B, C): the same order.
#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "block_fixture.h"
#include "closeness.h"
#include "huggingface_recording.h"
#include "samba/blocks/module.h"

namespace samba {
namespace {

// A layer passes every value through some ten rounded stages, each with the error of a chain, and its weights pass
// errors on with a gain around 1; a gradient passes through twice as many. The largest distances on record are in
// docs/huggingface_parity.md; another epsilon of a norm (1e-5 for 1e-6) gives more than 1000.
constexpr double kForwardBound = 8.0;
constexpr double kGradientBound = 16.0;

void check_close(const Array& got, const Array& want, std::size_t chain, double bound, const std::string& what) {
  const double found = distance(got.floats(), want.floats(), chain);
  INFO(what << ": distance " << found << ", bound " << bound);
  CHECK(found <= bound);
}

// The last `count` entries of the third axis: positions of a key cache, slots of a convolution window.
Array last_entries(const Array& array, Index count) {
  const Shape& shape = array.shape();
  const Index outer = shape[0] * shape[1], length = shape[2], inner = shape.size() == 4 ? shape[3] : 1;
  Shape part_shape = shape;
  part_shape[2] = count;
  Array part(DType::float32, part_shape);
  for (Index i = 0; i < outer; ++i) {
    std::copy_n(array.floats().data() + (i * length + length - count) * inner, count * inner,
                part.floats().data() + i * count * inner);
  }
  return part;
}

BlockModule make_module(Executor& executor, const Recorded& recorded) {
  return {executor, recorded.kind(), recorded.options(), views(recorded.weights)};
}

void check_cache(const Recorded& recorded, BlockModule& module, const ModuleState& state) {
  const std::size_t chain = recorded.chain(recorded.at("x").shape()[1]);
  if (recorded.kind() == "transformer") {
    const Index kept = recorded.at("cache.keys").shape()[2];
    check_close(last_entries(state.keys(), kept), recorded.at("cache.keys"), chain, kForwardBound, "cache.keys");
    check_close(last_entries(state.values(), kept), recorded.at("cache.values"), chain, kForwardBound, "cache.values");
    return;
  }
  check_close(last_entries(state.pieces().at("conv_window"), 3), last_entries(recorded.at("cache.conv_state"), 3),
              chain, kForwardBound, "cache.conv_state");
  const Array h = recorded.kind() == "mamba1" ? state.pieces().at("h") : module.reports().at("h_last");
  check_close(h, recorded.at("cache.recurrent_state"), chain, kForwardBound, "cache.recurrent_state");
}

// A prefill of the recorded prefix, then one token at a time.
void check_decode(const Recorded& recorded, BlockModule& module) {
  const Array& x = recorded.at("x");
  const Index length = x.shape()[1], prefix = recorded.prefix();
  const auto state = module.allocate_state(x.shape()[0], length);
  Array decoded = module.forward(positions(x, 0, prefix), *state);
  check_close(decoded, positions(recorded.at("decode"), 0, prefix), recorded.chain(recorded.at("x").shape()[1]),
              kForwardBound, "prefix");
  for (Index at = prefix; at < length; ++at) {
    const Array y = module.step(positions(x, at, at + 1), *state);
    check_close(y, positions(recorded.at("decode"), at, at + 1), recorded.chain(recorded.at("x").shape()[1]),
                kForwardBound, "step at " + std::to_string(at));
  }
  check_cache(recorded, module, *state);
}

}  // namespace

TEST_CASE("The layers of every family that is listed were recorded") {
  std::vector<std::string> names;
  for (const auto& path : recorded_layers()) names.push_back(path.stem().string());
  CHECK(names == std::vector<std::string>{"gemma", "llama", "llama_rope_linear", "llama_rope_llama3", "mamba", "mamba2",
                                          "mamba2_dt_limit", "mistral", "qwen2", "qwen3", "stablelm", "starcoder2"});
}

TEST_CASE("A block gives the output of the Hugging Face layer with its weights") {
  for (const auto& executor : every_executor()) {
    for (const auto& path : recorded_layers()) {
      INFO(path.stem().string() << " on " << executor->name() << " " << executor->instruction_set());
      const Recorded recorded(path);
      BlockModule module = make_module(*executor, recorded);
      check_close(module.forward(recorded.at("x")), recorded.at("y"), recorded.chain(recorded.at("x").shape()[1]),
                  kForwardBound, "y");
    }
  }
}

TEST_CASE("A block with another option lies far outside the bound") {
  struct Change {
    const char* file;
    nlohmann::json options;
  };
  const std::vector<Change> changes = {
      {"llama", {{"norm_eps", 1e-5}}},
      {"llama", {{"rope_theta", 10100.0}}},
      {"llama_rope_linear", {{"rope_scaling", {{"type", "linear"}, {"factor", 4.1}}}}},
      {"llama_rope_llama3", {{"rope_scaling", nullptr}}},
      {"mistral", {{"window", 5}}},
      {"mistral", {{"window", 3}}},
      {"qwen2", {{"rope_theta", 10000.0}}},
      {"gemma", {{"norm", "rmsnorm"}}},
      {"gemma", {{"mlp", "geglu"}}},
      {"starcoder2", {{"mlp", "gelu"}}},
      {"stablelm", {{"rope_dim", 4}}},
      {"mamba2_dt_limit", {{"dt_limit", {0.1, 0.31}}}},
  };
  const auto executor = make_executor("cpu");
  for (const auto& [name, changed] : changes) {
    INFO(name << " with " << changed.dump());
    const Recorded recorded(std::filesystem::path(SAMBA_SOURCE_DIR "/test/huggingface") /
                            (name + std::string(".safetensors")));
    nlohmann::json options = recorded.options();
    options.update(changed);
    if (options.contains("rope_scaling") && options["rope_scaling"].is_null()) options.erase("rope_scaling");
    BlockModule module(*executor, recorded.kind(), options, views(recorded.weights));
    const Array y = module.forward(recorded.at("x"));
    CHECK(distance(y.floats(), recorded.at("y").floats(), recorded.chain(recorded.at("x").shape()[1])) >
          10 * kForwardBound);
  }
}

TEST_CASE("Decoding a token at a time gives what the Hugging Face layer gives with its cache") {
  for (const auto& executor : every_executor()) {
    for (const auto& path : recorded_layers()) {
      INFO(path.stem().string() << " on " << executor->name() << " " << executor->instruction_set());
      const Recorded recorded(path);
      CHECK((recorded.prefix() > 0) == recorded.has("decode"));
      if (!recorded.has("decode")) continue;
      BlockModule module = make_module(*executor, recorded);
      check_decode(recorded, module);
    }
  }
}

TEST_CASE("The gradients of a block are those of the Hugging Face layer") {
  std::size_t files = 0;
  for (const auto& executor : every_executor()) {
    for (const auto& path : recorded_layers()) {
      const Recorded recorded(path);
      if (!recorded.has("grad_output")) continue;
      INFO(path.stem().string() << " on " << executor->name() << " " << executor->instruction_set());
      ++files;
      BlockModule module = make_module(*executor, recorded);
      module.admit_extended_gradients();
      const NamedGradients gradients = module.backward(recorded.at("x"), recorded.at("grad_output"));
      std::size_t compared = 0;
      for (const auto& [name, want] : recorded.file.tensors) {
        if (!name.starts_with("grad.")) continue;
        const Array& got = gradients.arrays.at(samba_name(recorded.kind(), name.substr(5)));
        // A weight's gradient sums over the tokens of the batch besides.
        const auto chain =
            std::max(recorded.chain(recorded.at("x").shape()[1]),
                     static_cast<std::size_t>(recorded.at("x").size()) / static_cast<std::size_t>(module.d_model()));
        check_close(got, want, chain, kGradientBound, name);
        ++compared;
      }
      CHECK(compared == gradients.names.size());
    }
  }
  CHECK(files == 11 * every_executor().size());
}

}  // namespace samba
