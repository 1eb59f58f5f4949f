// Folders of Hugging Face transformers and mamba_ssm: what is computed from them, and what becomes of them when they go
// through samba's forms. test/huggingface/folders holds what scripts/record_convert.py wrote and transformers computed.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "closeness.h"
#include "recorded_tokenizers.h"
#include "samba/backends/registry.h"
#include "samba/convert/convert.h"
#include "samba/core/mapped_file.h"
#include "samba/core/sha256.h"
#include "samba/formats/safetensors.h"
#include "samba/numerics/half.h"
#include "samba/numerics/low_bit.h"
#include "temporary_folder.h"

namespace samba {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using nlohmann::json;

const fs::path kFolders = fs::path(SAMBA_SOURCE_DIR) / "test/huggingface/folders";

// In typical sizes of the error of one serial sum (closeness.h) of the model's longest chain. The weights of the
// recordings are drawn wide, so that the best two tokens lie apart, and two layers carry the rounding of float32
// further than one sum does: the largest distance seen is 13, of Mamba's recurrence. An epsilon of 1e-5 in place of
// 1e-6 gives more than 100.
constexpr double kTolerance = 32.0;

std::vector<std::string> folder_names() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kFolders)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

bool is_mamba_ssm(const std::string& name) { return name.starts_with("mamba_ssm"); }

json json_of(const fs::path& path) { return json::parse(std::ifstream(path)); }

std::unique_ptr<Executor> cpu() { return make_executor("cpu"); }

Array row_of(const Array& ids, Index row) {
  const Index length = ids.shape()[1];
  Array result(DType::int32, {1, length});
  std::copy_n(ids.values<std::int32_t>().begin() + row * length, length, result.values<std::int32_t>().begin());
  return result;
}

std::int32_t best_of(std::span<const float> logits) {
  return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// The tokens that greedy decoding adds to a row, one step each.
std::vector<std::int32_t> greedy(SambaStack& stack, const Array& row, std::size_t count) {
  const auto vocab = static_cast<std::size_t>(stack.config().vocab);
  const auto state = stack.allocate_state(1, row.shape()[1] + static_cast<Index>(count));
  const Array logits = stack.forward(row, *state);
  std::vector<std::int32_t> tokens{best_of(logits.floats().last(vocab))};
  while (tokens.size() < count) {
    Array next(DType::int32, {1, 1});
    next.values<std::int32_t>()[0] = tokens.back();
    tokens.push_back(best_of(stack.step(next, *state).floats()));
  }
  return tokens;
}

void check_computes(const fs::path& model, const SafetensorsFile& expected) {
  const auto executor = cpu();
  const auto stack = load_model(*executor, find_model(model));
  const Array& ids = expected.tensors.at("ids");
  const Array& tokens = expected.tensors.at("greedy");
  const auto count = static_cast<std::size_t>(tokens.shape()[1]);
  Index chain = 0;
  for (const ParameterTensor& tensor : stack->registry().tensors()) chain = std::max(chain, tensor.shape.back());
  const Array logits = stack->forward(ids);
  CHECK(distance<float>(logits.floats(), expected.tensors.at("logits").floats(), static_cast<std::size_t>(chain)) <
        kTolerance);
  for (Index row = 0; row < ids.shape()[0]; ++row) {
    const auto wanted = tokens.values<std::int32_t>().subspan(static_cast<std::size_t>(row) * count, count);
    CHECK(greedy(*stack, row_of(ids, row), count) == std::vector<std::int32_t>(wanted.begin(), wanted.end()));
  }
}

// All tensors of a folder of safetensors files, as copies.
ArrayMap tensors_of(const fs::path& folder) {
  ArrayMap tensors;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("model") || !name.ends_with(".safetensors")) continue;
    for (auto& [tensor, array] : read_safetensors(entry.path()).tensors) tensors.emplace(tensor, std::move(array));
  }
  return tensors;
}

std::string bytes_of(const Array& array) { return {static_cast<const char*>(array.data()), array.byte_size()}; }

// float16 comes back as float32.
std::string widened(const Array& array) {
  Array wide = Array::zeros(array.shape());
  for (std::size_t i = 0; i < wide.floats().size(); ++i) {
    wide.floats()[i] = expand_float16(array.values<std::uint16_t>()[i]);
  }
  return bytes_of(wide);
}

void check_same_tensors(const fs::path& first, const fs::path& second) {
  ArrayMap a = tensors_of(first);
  const ArrayMap b = tensors_of(second);
  if (a.contains("lm_head.weight") && !b.contains("lm_head.weight")) a.erase("lm_head.weight");  // tied, stored twice
  REQUIRE(a.size() == b.size());
  for (const auto& [name, array] : a) {
    INFO(name);
    REQUIRE(b.contains(name));
    CHECK(b.at(name).shape() == array.shape());
    CHECK(bytes_of(b.at(name)) == (array.dtype() == DType::float16 ? widened(array) : bytes_of(array)));
  }
}

Conversion convert(const fs::path& in, const fs::path& out, const std::string& model_type = "") {
  ConvertOptions options;
  options.target = out.extension() == ".samba" ? ConvertTarget::file : ConvertTarget::folder;
  options.model_type = model_type;
  return convert_model(find_model(in), out, options);
}

TEST_CASE("a folder of another program is computed from directly: logits and greedy tokens are the recorded ones") {
  std::size_t compared = 0;
  for (const std::string& name : folder_names()) {
    INFO(name);
    const fs::path folder = kFolders / name;
    if (!fs::exists(folder / "expected.safetensors")) continue;
    check_computes(folder, read_safetensors(folder / "expected.safetensors"));
    ++compared;
  }
  CHECK(compared >= 21);
}

TEST_CASE("through a samba file and back every tensor has its bytes, in a folder that transformers has loaded") {
  for (const std::string& name : folder_names()) {
    INFO(name);
    const TemporaryFolder place;
    const fs::path folder = kFolders / name, file = place / "model.samba", back = place / "back";
    const json written = json_of(folder / "written.json");
    convert(folder, file);
    const std::string type = written.value("model_type", "");
    const Conversion conversion = convert(file, back, type == "phi3" ? type : "");
    CHECK(conversion.model_type == type);
    CHECK((conversion.to == ModelForm::huggingface_folder) == !type.empty());
    if (!is_mamba_ssm(name) && name.starts_with(type)) check_same_tensors(folder, back);
    // The folder is the one that transformers loaded and found to compute the same.
    for (const auto& [part, digest] : written["sha256"].items()) {
      CHECK(sha256_hex(read_file(back / part).data(), fs::file_size(back / part)) == digest);
    }
    // And again: a folder that samba wrote goes into the same file.
    convert(back, place / "again.samba");
    CHECK(read_file(place / "again.samba") == read_file(file));
  }
}

TEST_CASE("a file made from a folder computes the same bits as the folder") {
  for (const std::string& name : folder_names()) {
    INFO(name);
    const TemporaryFolder place;
    convert(kFolders / name, place / "model.samba");
    const auto executor = cpu();
    Array ids(DType::int32, {1, 9});
    for (Index i = 0; i < 9; ++i)
      ids.values<std::int32_t>()[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(7 * i % 50);
    const Array a = load_model(*executor, find_model(kFolders / name))->forward(ids);
    const Array b = load_model(*executor, find_model(place / "model.samba"))->forward(ids);
    CHECK(bytes_of(a) == bytes_of(b));
  }
}

TEST_CASE("another meaning of a field lies far outside of the tolerance") {
  const TemporaryFolder place;
  fs::copy(kFolders / "llama", place / "llama");
  json config = json_of(place / "llama/config.json");
  config["rms_norm_eps"] = 1e-5;
  std::ofstream(place / "llama/config.json") << config.dump();
  const auto executor = cpu();
  const SafetensorsFile expected = read_safetensors(kFolders / "llama/expected.safetensors");
  const Array logits = load_model(*executor, find_model(place / "llama"))->forward(expected.tensors.at("ids"));
  CHECK(distance<float>(logits.floats(), expected.tensors.at("logits").floats(), 40) > kTolerance);
}

TEST_CASE("bfloat16 matrices stay as they are, and --dtype float32 expands them exactly") {
  const TemporaryFolder place;
  ConvertOptions options;
  options.format = WeightFormat::float32;
  const Conversion wide = convert_model(find_model(kFolders / "llama_tied"), place / "wide.samba", options);
  const Conversion kept = convert(kFolders / "llama_tied", place / "kept.samba");
  CHECK(kept.from_dtypes == "bfloat16");
  CHECK(kept.to_format == WeightFormat::bfloat16);
  CHECK(wide.to_format == WeightFormat::float32);
  for (const ConvertedTensor& tensor : wide.tensors) {
    if (tensor.largest_error) CHECK(*tensor.largest_error == 0.0);
  }
  const auto executor = cpu();
  CHECK(load_model(*executor, find_model(place / "wide.samba"))->parameters_sha256() ==
        load_model(*executor, find_model(place / "kept.samba"))->parameters_sha256());
}

TEST_CASE("tokenizer and generation files go with the model; a dry run writes nothing") {
  const TemporaryFolder place;
  fs::copy(kFolders / "llama", place / "in");
  std::ofstream(place / "in/tokenizer.json") << "{\"kept\": true}";
  ConvertOptions options;
  options.target = ConvertTarget::folder;
  options.dry_run = true;
  const Conversion planned = convert_model(find_model(place / "in"), place / "out", options);
  CHECK_FALSE(fs::exists(place / "out"));
  CHECK(planned.model_type == "llama");
  options.dry_run = false;
  const Conversion done = convert_model(find_model(place / "in"), place / "out", options);
  CHECK(done.copied == std::vector<std::string>{"tokenizer.json", "generation_config.json"});
  CHECK(read_file(place / "out/tokenizer.json") == "{\"kept\": true}");
  CHECK(read_file(place / "out/generation_config.json") == read_file(place / "in/generation_config.json"));
  CHECK(json_of(place / "out/config.json")["eos_token_id"] == json_of(place / "in/config.json")["eos_token_id"]);
  check_same_tensors(place / "in", place / "out");
}

TEST_CASE("a samba file made of a folder has the tokenizer beside it, and takes it along when it goes back") {
  const TemporaryFolder place;
  fs::copy(kFolders / "llama", place / "in");
  const std::string tokenizer = recorded_file("smollm2.tokenizer.json");
  std::ofstream(place / "in/tokenizer.json") << tokenizer;
  const Conversion conversion = convert(place / "in", place / "model.samba");
  CHECK(conversion.no_tokenizer.empty());
  CHECK(conversion.copied == std::vector<std::string>{"tokenizer.json"});
  CHECK(read_file(place / "tokenizer.json") == tokenizer);
  CHECK(json_of(place / "model.json")["tokenizer"]["file"] == "tokenizer.json");
  convert(place / "model.samba", place / "back");
  CHECK(read_file(place / "back/tokenizer.json") == tokenizer);
  CHECK(read_file(place / "back/generation_config.json") == read_file(place / "in/generation_config.json"));
  // Another model's tokenizer stays.
  std::ofstream(place / "in/tokenizer.json") << "{}";
  CHECK_THAT(convert(place / "in", place / "second.samba").no_tokenizer, Contains("is another model's"));
  CHECK(read_file(place / "tokenizer.json") == tokenizer);
}

TEST_CASE("every model of one mamba_ssm form has the tensors of the package") {
  const OpenModel model = open_model(find_model(kFolders / "mamba_ssm_3_bin"));
  CHECK(model.form == ModelForm::mamba_ssm_folder);
  CHECK(model.state.config.layers.at(0).kind == BlockKind::mamba3);
  CHECK(model.state.config.vocab == 64);  // 61, padded to a multiple of 16
  // The parameters of mamba_ssm's MambaLMHeadModel with Mamba3 layers, as the package's source declares them
  // (modules/mamba3.py, modules/block.py, models/mixer_seq_simple.py of June 2026). There B_bias and C_bias have an
  // axis of one between heads and states.
  const std::string layer = "backbone.layers.0.";
  const std::map<std::string, Shape> declared = {{"backbone.embedding.weight", {64, 32}},
                                                 {layer + "norm.weight", {32}},
                                                 {layer + "mixer.in_proj.weight", {2 * 64 + 2 * 128 + 3 * 1 + 32, 32}},
                                                 {layer + "mixer.dt_bias", {1}},
                                                 {layer + "mixer.B_bias", {1, 128}},
                                                 {layer + "mixer.C_bias", {1, 128}},
                                                 {layer + "mixer.B_norm.weight", {128}},
                                                 {layer + "mixer.C_norm.weight", {128}},
                                                 {layer + "mixer.D", {1}},
                                                 {layer + "mixer.out_proj.weight", {32, 64}},
                                                 {"backbone.norm_f.weight", {32}}};
  std::map<std::string, Shape> taken;
  for (const ModelTensor& tensor : model.tensors) {
    taken.emplace(tensor.source.substr(tensor.source.find('/') + 1), tensor.shape);
  }
  CHECK(taken == declared);
  // The same layers of Mamba-1, as float16 in a pickle and as transformers writes them, differ by their dtype alone.
  CHECK(open_model(find_model(kFolders / "mamba_ssm_1_bin")).tensors.at(2).dtype == "float16");
  CHECK(open_model(find_model(kFolders / "mamba_ssm_1")).state.config ==
        open_model(find_model(kFolders / "mamba")).state.config);
}

}  // namespace
}  // namespace samba
