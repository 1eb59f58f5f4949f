// What is refused of folders of other programs: fields and tensors that samba does not compute exactly, and damaged or
// hostile files. Every refusal is one line that names the place, and nothing is written.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <functional>

#include "command.h"
#include "samba/core/error.h"
#include "samba/formats/safetensors.h"
#include "samba/formats/torch_file.h"

namespace samba {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using nlohmann::json;

const fs::path kFolders = fs::path(SAMBA_SOURCE_DIR) / "test/huggingface/folders";

void write_bytes(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

// A copy of a recorded folder that a test changes.
class Folder {
 public:
  explicit Folder(const std::string& name) { fs::copy(kFolders / name, path()); }
  fs::path path() const { return place_ / "in"; }
  fs::path file(const std::string& name) const { return path() / name; }

  void set(const json& fields) {
    json config = json::parse(std::ifstream(file("config.json")));
    config.update(fields);
    write_bytes(file("config.json"), config.dump());
  }
  // Changes the header of model.safetensors; the data stays.
  void header(const std::function<void(json&)>& change) {
    const std::string bytes = read_file(file("model.safetensors"));
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof length);
    json parsed = json::parse(bytes.substr(8, length));
    change(parsed);
    raw_header(parsed.dump(), bytes.substr(8 + length));
  }
  void raw_header(const std::string& text, const std::string& data) {
    const std::uint64_t length = text.size();
    write_bytes(file("model.safetensors"), std::string(reinterpret_cast<const char*>(&length), 8) + text + data);
  }

  // The message of `samba convert`, which must fail with the code and leave nothing.
  std::string refusal(int code) const {
    const CommandResult result =
        samba_command({"convert", path().string(), (place_ / "out.samba").string(), "--progress", "never"});
    INFO(result.err);
    CHECK(result.code == code);
    CHECK(result.out.empty());
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
    CHECK(place_.entries() == 1);
    return result.err;
  }

 private:
  TemporaryFolder place_;
};

std::string refused_field(const std::string& name, const json& fields) {
  Folder folder(name);
  folder.set(fields);
  return folder.refusal(2);
}

TEST_CASE("a field that changes what is computed is refused by its name, with what is accepted") {
  const auto rope = [](const std::string& type) {
    return json{{"rope_parameters", {{"rope_type", type}, {"rope_theta", 10000.0}, {"factor", 2.0}}}};
  };
  CHECK_THAT(refused_field("llama", {{"model_type", "gpt_neox"}}),
             Contains("config.json: model_type is \"gpt_neox\"; accepted: llama, mistral"));
  CHECK_THAT(refused_field("llama", {{"model_type", "mixtral"}}), Contains("model_type is \"mixtral\""));
  CHECK_THAT(refused_field("llama", {{"model_type", "gemma2"}}), Contains("model_type is \"gemma2\""));
  CHECK_THAT(refused_field("llama", rope("yarn")),
             Contains("rope_parameters.rope_type is \"yarn\"; accepted: default, linear, llama3"));
  CHECK_THAT(refused_field("llama", rope("dynamic")), Contains("rope_type is \"dynamic\""));
  CHECK_THAT(refused_field("phi3", rope("longrope")), Contains("rope_type is \"longrope\"; accepted: default"));
  CHECK_THAT(refused_field("llama", {{"hidden_act", "relu"}}),
             Contains("hidden_act is \"relu\"; accepted: silu, gelu, gelu_pytorch_tanh"));
  CHECK_THAT(refused_field("llama", {{"num_local_experts", 8}}),
             Contains("the field num_local_experts (8) is unknown, and may change what the model computes"));
  CHECK_THAT(refused_field("llama", {{"quantization_config", {{"bits", 4}}}}), Contains("quantization_config"));
  CHECK_THAT(refused_field("llama", {{"partial_rotary_factor", 0.5}}), Contains("partial_rotary_factor is 0.5"));
  CHECK_THAT(refused_field("stablelm", {{"use_parallel_residual", true}}),
             Contains("use_parallel_residual is true; accepted: false"));
  CHECK_THAT(refused_field("stablelm", {{"qk_layernorm", true}}), Contains("qk_layernorm is true"));
  CHECK_THAT(refused_field("gemma", {{"use_bidirectional_attention", true}}), Contains("use_bidirectional_attention"));
  CHECK_THAT(refused_field("qwen2_windows", {{"layer_types", {"full_attention", "chunked_attention"}}}),
             Contains("layer_types") && Contains("accepted: full_attention and sliding_attention"));
  CHECK_THAT(refused_field("mamba", {{"state_size", 32}}), Contains("state_size is 32; accepted: 16"));
  CHECK_THAT(refused_field("mamba", {{"use_bias", true}}), Contains("use_bias is true; accepted: false"));
  CHECK_THAT(refused_field("mamba", {{"layer_norm_epsilon", 1e-6}}), Contains("layer_norm_epsilon"));
  CHECK_THAT(refused_field("mamba2", {{"n_groups", 8}}), Contains("n_groups is 8; accepted: 1"));
  CHECK_THAT(refused_field("mamba2", {{"state_size", 64}}), Contains("state_size is 64; accepted: 128"));
  CHECK_THAT(refused_field("mamba2", {{"head_dim", 32}}), Contains("head_dim is 32; accepted: 64"));
  for (const auto& [field, value, accepted] :
       {std::tuple{"d_state", 64, "128"}, std::tuple{"headdim", 128, "64"}, std::tuple{"ngroups", 2, "1"}}) {
    CHECK_THAT(refused_field("mamba_ssm_3_bin", {{"ssm_cfg", {{"layer", "Mamba3"}, {field, value}}}}),
               Contains("ssm_cfg." + std::string(field) + " is " + std::to_string(value) + "; accepted: " + accepted));
  }
  CHECK_THAT(refused_field("mamba_ssm_3_bin", {{"ssm_cfg", {{"layer", "Mamba3"}, {"is_mimo", true}}}}),
             Contains("ssm_cfg.is_mimo is true; accepted: false"));
  CHECK_THAT(refused_field("mamba_ssm_1", {{"attn_layer_idx", {1}}}), Contains("attn_layer_idx is [1]"));
  CHECK_THAT(refused_field("mamba_ssm_1", {{"d_intermediate", 64}}), Contains("d_intermediate is 64; accepted: 0"));
}

TEST_CASE("sizes that cannot be are refused before anything is allocated") {
  CHECK_THAT(refused_field("llama", {{"hidden_size", "64"}}), Contains("hidden_size is \"64\""));
  CHECK_THAT(refused_field("llama", {{"hidden_size", -1}}), Contains("hidden_size is -1"));
  CHECK_THAT(refused_field("llama", {{"num_hidden_layers", 2000000000}}), Contains("num_hidden_layers"));
  CHECK_THAT(refused_field("llama", {{"num_attention_heads", 7}}),
             Contains("n_kv_heads") || Contains("head_dim") || Contains("n_heads") || Contains("q_proj"));
  CHECK_THAT(refused_field("llama", {{"rms_norm_eps", "small"}}), Contains("rms_norm_eps"));
  CHECK_THAT(refused_field("llama", {{"vocab_size", nullptr}}), Contains("vocab_size is null"));
}

TEST_CASE("tensors that are missing, unknown, of another shape or dtype, or tied to another are refused by name") {
  const auto message = [](const std::string& name, const std::function<void(ArrayMap&)>& change) {
    Folder folder(name);
    ArrayMap tensors = read_safetensors(folder.file("model.safetensors")).tensors;
    change(tensors);
    write_safetensors(folder.file("model.safetensors"), ConstArrayMap(tensors.begin(), tensors.end()));
    return folder.refusal(2);
  };
  CHECK_THAT(message("llama", [](ArrayMap& t) { t.erase("model.norm.weight"); }),
             Contains("the tensor model.norm.weight is missing"));
  CHECK_THAT(message("llama", [](ArrayMap& t) { t["model.layers.0.mlp.extra.weight"] = Array::zeros({2}); }),
             Contains("the tensor model.layers.0.mlp.extra.weight (model.safetensors) is unknown"));
  CHECK_THAT(message("llama", [](ArrayMap& t) { t["model.norm.weight"] = Array::zeros({23}); }),
             Contains("model.norm.weight is float32 (23,); accepted: float32, float16 or bfloat16 (24,)"));
  CHECK_THAT(message("llama", [](ArrayMap& t) { t["model.norm.weight"] = Array(DType::int32, {24}); }),
             Contains("model.norm.weight is int32 (24,)"));
  CHECK_THAT(message("llama_stored_twice", [](ArrayMap& t) { t["lm_head.weight"].floats()[5] += 1.0F; }),
             Contains("lm_head.weight differs from model.embed_tokens.weight"));
  CHECK_THAT(message("mamba_ssm_1", [](ArrayMap& t) { t["lm_head.weight"].floats()[5] += 1.0F; }),
             Contains("lm_head.weight differs from backbone.embedding.weight"));
  CHECK_THAT(
      message("gemma", [](ArrayMap& t) { t["model.layers.0.post_feedforward_layernorm.weight"] = Array::zeros({24}); }),
      Contains("post_feedforward_layernorm.weight"));
}

TEST_CASE("damaged safetensors files are refused by what is wrong") {
  using Change = std::function<void(json&)>;
  const auto message = [](const Change& change) {
    Folder folder("llama");
    folder.header(change);
    return folder.refusal(3);
  };
  const std::string norm = "model.norm.weight";
  CHECK_THAT(message([&](json& h) { h[norm]["data_offsets"][1] = std::uint64_t{1} << 62; }), Contains(norm));
  CHECK_THAT(message([&](json& h) { h[norm]["data_offsets"] = h["model.embed_tokens.weight"]["data_offsets"]; }),
             Contains(norm));
  CHECK_THAT(message([&](json& h) { h[norm]["data_offsets"] = {0, 96}; }), Contains("overlap") || Contains("gap"));
  CHECK_THAT(message([&](json& h) {
               h[norm]["shape"] = {std::int64_t{1} << 40, std::int64_t{1} << 40};
             }),
             Contains(norm));
  CHECK_THAT(message([&](json& h) { h[norm]["shape"] = {-24}; }), Contains(norm));
  CHECK_THAT(message([&](json& h) { h[norm]["dtype"] = "F8_E4M3"; }), Contains(norm) && Contains("F8_E4M3"));
  CHECK_THAT(message([&](json& h) { h[norm]["dtype"] = "F64"; }), Contains(norm));
  CHECK_THAT(message([&](json& h) { h.erase(norm); }), Contains("gap") || Contains("after the last tensor"));

  const auto raw = [](const std::function<void(Folder&, const std::string&)>& change) {
    Folder folder("llama");
    change(folder, read_file(folder.file("model.safetensors")));
    return folder.refusal(3);
  };
  CHECK_THAT(raw([](Folder& f, const std::string& bytes) {
               write_bytes(f.file("model.safetensors"), bytes.substr(0, bytes.size() - 5));
             }),
             Contains("model.safetensors"));
  CHECK_THAT(raw([](Folder& f, const std::string&) { write_bytes(f.file("model.safetensors"), "short"); }),
             Contains("too short"));
  CHECK_THAT(raw([](Folder& f, const std::string&) { write_bytes(f.file("model.safetensors"), ""); }),
             Contains("too short"));
  CHECK_THAT(raw([](Folder& f, const std::string& bytes) {
               const std::uint64_t huge = std::uint64_t{1} << 60;
               write_bytes(f.file("model.safetensors"),
                           std::string(reinterpret_cast<const char*>(&huge), 8) + bytes.substr(8));
             }),
             Contains("claims 1152921504606846976 bytes"));
  CHECK_THAT(raw([](Folder& f, const std::string&) {
               f.raw_header(R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                                "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})",
                            "1234");
             }),
             Contains("the key \"a\" is given twice"));
  CHECK_THAT(raw([](Folder& f, const std::string&) { write_bytes(f.file("config.json"), "{\"model_type\": "); }),
             Contains("config.json is not JSON"));
  CHECK_THAT(raw([](Folder& f, const std::string&) { write_bytes(f.file("config.json"), std::string(100000, '[')); }),
             Contains("config.json"));
  // A value that is not finite.
  Folder folder("llama");
  ArrayMap tensors = read_safetensors(folder.file("model.safetensors")).tensors;
  tensors["model.norm.weight"].floats()[2] = std::numeric_limits<float>::infinity();
  write_safetensors(folder.file("model.safetensors"), ConstArrayMap(tensors.begin(), tensors.end()));
  CHECK_THAT(folder.refusal(3), Contains("element 2 of norm_f.weight is not finite"));
}

TEST_CASE("an index that does not fit its files is refused; the order of its entries does not matter") {
  const std::string name = "model.safetensors.index.json";
  const auto message = [&](const std::function<void(Folder&, json&)>& change) {
    Folder folder("llama_sharded");
    json index = json::parse(read_file(folder.file(name)));
    change(folder, index["weight_map"]);
    write_bytes(folder.file(name), index.dump());
    return folder.refusal(3);
  };
  const std::string norm = "model.norm.weight";
  CHECK_THAT(message([&](Folder& f, json& map) { fs::remove(f.file(map[norm].get<std::string>())); }),
             Contains("which is not in the folder"));
  CHECK_THAT(message([&](Folder&, json& map) { map[norm] = "../model.safetensors"; }),
             Contains("the name of a file of this folder is needed"));
  CHECK_THAT(message([&](Folder&, json& map) { map[norm] = "/etc/passwd"; }), Contains("/etc/passwd"));
  CHECK_THAT(message([&](Folder&, json& map) { map[norm] = 7; }), Contains(norm));
  CHECK_THAT(message([&](Folder&, json& map) { map.erase(norm); }), Contains("does not list the tensor"));
  CHECK_THAT(message([&](Folder&, json& map) { map["more"] = map[norm]; }), Contains("the tensor 'more' is not in"));
  CHECK_THAT(message([&](Folder& f, json& map) {
               const std::string file = map[norm].get<std::string>();
               ArrayMap tensors = read_safetensors(f.file(file)).tensors;
               tensors["model.embed_tokens.weight"] = Array::zeros({61, 24});
               write_safetensors(f.file(file), ConstArrayMap(tensors.begin(), tensors.end()));
             }),
             Contains("model.embed_tokens.weight") && Contains(" too"));

  Folder folder("llama_sharded");
  const json index = json::parse(read_file(folder.file(name)));
  std::string backwards;
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    backwards = json(tensor).dump() + ": " + file.dump() + (backwards.empty() ? "" : ", ") + backwards;
  }
  write_bytes(folder.file(name), "{\"weight_map\": {" + backwards + "}}");
  const CommandResult result =
      samba_command({"convert", folder.path().string(), folder.path().string() + ".samba", "--dry-run"});
  CHECK(result.code == 0);
}

TEST_CASE("a pickle is read for its tensors alone: whatever else it says is refused and not carried out") {
  const std::string bytes = read_file(kFolders / "mamba_ssm_1_bin/pytorch_model.bin");
  const auto message = [&](const std::function<void(std::string&)>& change) {
    Folder folder("mamba_ssm_1_bin");
    std::string changed = bytes;
    change(changed);
    write_bytes(folder.file("pytorch_model.bin"), changed);
    return folder.refusal(3);
  };
  const auto replace = [](std::string& text, const std::string& from, const std::string& to) {
    REQUIRE(from.size() == to.size());
    const std::size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    text.replace(at, from.size(), to);
  };
  CHECK_THAT(message([&](std::string& b) {
               replace(b, "ctorch._utils\n_rebuild_tensor_v2", "cposix\nsystem_aaaaaaaaaaaaaaaaaa");
             }),
             Contains("names 'posix system_aaaaaaaaaaaaaaaaaa'") && Contains("nothing is carried out"));
  CHECK_THAT(message([&](std::string& b) { replace(b, "HalfStorage", "EvilStorage"); }), Contains("torch EvilStorage"));
  CHECK_THAT(message([&](std::string& b) { replace(b, "ccollections\nOrderedDict", "ccollections\nOrderedDicT"); }),
             Contains("OrderedDicT"));
  CHECK_THAT(message([](std::string& b) { b.resize(b.size() / 2); }), Contains("zip"));
  CHECK_THAT(message([](std::string& b) { b = "PK"; }), Contains("zip"));
  CHECK_THAT(message([](std::string& b) { b = std::string("\x80\x02}q\x00.", 6) + std::string(100, '\0'); }),
             Contains("before version 1.6 are not read"));

  // A pickle with any changed byte is refused or gives tensors inside of the file.
  std::size_t refused = 0;
  const std::size_t begin = bytes.find(std::string("\x80\x02", 2));
  for (std::size_t at = begin; at < begin + 2500 && at < bytes.size(); ++at) {
    for (const char value : std::string("\x00\xFFRh(.", 6)) {
      std::string changed = bytes;
      changed[at] = value;
      const std::span<const std::byte> view(reinterpret_cast<const std::byte*>(changed.data()), changed.size());
      try {
        for (const auto& [name, tensor] : index_torch_file(view, "changed")) {
          const auto* data = static_cast<const std::byte*>(tensor.data);
          const auto size = static_cast<std::size_t>(tensor.size()) * dtype_size(tensor.dtype);
          REQUIRE(data >= view.data());
          REQUIRE(size <= static_cast<std::size_t>(view.data() + view.size() - data));
        }
      } catch (const Error& error) {
        REQUIRE(error.kind() == ErrorKind::corrupt);
        ++refused;
      }
    }
  }
  CHECK(refused > 1000);
}

TEST_CASE("an index of PyTorch files, a folder without config.json, and one without weights") {
  Folder folder("llama");
  fs::remove(folder.file("config.json"));
  CHECK_THAT(folder.refusal(2), Contains("has no config.json"));
  Folder empty("llama");
  fs::remove(empty.file("model.safetensors"));
  CHECK_THAT(empty.refusal(2), Contains("is no run folder"));
}

TEST_CASE("a model type that cannot hold the model is refused with the reason") {
  const TemporaryFolder place;
  const auto message = [&](const std::string& type) {
    const CommandResult result =
        samba_command({"convert", (kFolders / "mistral").string(), (place / "out").string(), "--model-type", type});
    CHECK(result.code == 2);
    CHECK(place.entries() == 0);
    return result.err;
  };
  CHECK_THAT(message("llama"), Contains("--model-type llama: llama differs: /layers/0/window is 5 and 0") ||
                                   Contains("--model-type llama: llama differs: /layers/0/window is 5 and null"));
  CHECK_THAT(message("mamba"), Contains("mamba has no transformer layer, which layer 0 is"));
  CHECK_THAT(message("bert"), Contains("--model-type"));
}

}  // namespace
}  // namespace samba
