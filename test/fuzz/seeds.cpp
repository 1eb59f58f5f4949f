#include "fuzz/seeds.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "fuzz/dictionary.h"
#include "fuzz/fixtures.h"
#include "fuzz/parts.h"
#include "recorded_tokenizers.h"
#include "samba/blocks/module.h"
#include "samba/convert/convert.h"
#include "samba/core/json_fields.h"
#include "samba/formats/file_hashes.h"
#include "samba/formats/zstd_frame.h"
#include "samba/generate/state_file.h"
#include "samba/numerics/generator.h"
#include "samba/train/checkpoint.h"
#include "samba/train/mlp_checkpoint.h"
#include "temporary_folder.h"

namespace samba::fuzz {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Seeds = std::map<std::string, std::vector<std::string>>;

const Path kSource = SAMBA_SOURCE_DIR;

// The files below a folder of the repository whose names fit, those of at most `most_bytes` bytes.
std::vector<std::string> files_of(const std::string& folder, const std::string& ending, std::uint64_t most_bytes) {
  std::vector<Path> paths;
  for (const auto& entry : fs::recursive_directory_iterator(kSource / folder)) {
    if (entry.is_regular_file() && entry.path().string().ends_with(ending) && entry.file_size() <= most_bytes) {
      paths.push_back(entry.path());
    }
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> files;
  for (const Path& path : paths) files.push_back(read_file(path));
  return files;
}

void add(std::vector<std::string>& to, std::vector<std::string> more, const std::string& before = "") {
  for (std::string& one : more) to.push_back(before + one);
}

// A checkpoint after one step; what else it becomes.
void add_models(Seeds& seeds, const Path& folder) {
  const auto saved = [&](const StackConfig& config) {
    save_checkpoint(*trained(config), folder / "model.samba");
    return folder / "model.samba";
  };
  const auto converted = [&](const Path& from, const std::string& name, const ConvertOptions& options) {
    fs::remove_all(folder / name);
    convert_model(find_model(from), folder / name, options);
    return folder / name;
  };
  const Path general = saved(stack_of(
      R"({"vocab": 5, "d_model": 4, "tie_embeddings": false,
          "layers": [{"kind": "transformer", "n_heads": 2, "n_kv_heads": 1, "intermediate": 3}]})"));
  seeds["stack_archive"].push_back(read_file(general));
  ConvertOptions options;
  options.format = WeightFormat::int8;
  seeds["stack_archive"].push_back(read_file(converted(general, "int8.samba", options)));
  options.format = WeightFormat::bfloat16;
  options.codec = TensorCodec::zstd;
  seeds["stack_archive"].push_back(read_file(converted(general, "bfloat16.samba", options)));

  ConvertOptions gguf;
  gguf.target = ConvertTarget::gguf;
  seeds["gguf"].push_back(read_file(converted(
      saved(stack_of(R"({"vocab": 5, "d_model": 8, "norm_eps": 1e-6, "layers": [{"kind": "transformer", "n_heads": 2,
                                                                   "intermediate": 6}]})")),
      "model.gguf", gguf)));
}

void add_blocks(Seeds& seeds, const Path& folder) {
  for (const std::string kind : {"transformer", "mamba3"}) {
    const bool transformer = kind == "transformer";
    const Json options = transformer ? Json{{"n_heads", 2}} : Json::object();
    Json layer = options;
    layer["kind"] = kind;
    if (transformer) layer["intermediate"] = 3;
    const StackConfig config =
        stack_config_from_json(Json{{"vocab", 3}, {"d_model", transformer ? 4 : 32}, {"layers", Json::array({layer})}});
    Generator generator(5);
    const SambaStack stack(reference_executor(), config, generator, SambaStack::Use::inference);
    WeightMap weights;
    for (const auto& [name, weight] : stack.stored_weights()) {
      if (name.starts_with("layers.0.")) weights.emplace(name.substr(9), weight);
    }
    const BlockModule block(reference_executor(), kind, options, ConstWeightMap(weights.begin(), weights.end()),
                            BlockModule::Use::inference);
    block.save(folder / "block");
    seeds["block_file"].push_back(read_file(folder / "block"));
  }
}

void add_states(Seeds& seeds, const Path& folder) {
  SambaStack& stack = tiny_stack();
  Sequence sequence;
  sequence.tokens = {1, 2, 3, 4, 0};
  reserve(stack, sequence, 8);
  read_tokens(stack, sequence);
  for (const std::int32_t more : {-1, 2}) {  // all tokens read, and one that is not
    if (more >= 0) sequence.tokens.push_back(more);
    save_sequence(stack, sequence, folder / "state");
    seeds["state_file"].push_back(read_file(folder / "state"));
  }
  MlpState state;
  state.weights = draw_mlp_values(3);
  state.exp_avg = draw_mlp_values(4);
  for (const float value : draw_mlp_values(5)) state.exp_avg_sq.push_back(value * value);
  state.step = 12;
  state.settings = rounded_mlp_settings({});
  state.data_schedule = parse_data_schedule(R"({"z":[1,1.0,-0.0,1e-05],"s":"\ud800\n"})");
  seeds["mlp_checkpoint"].push_back(mlp_checkpoint_bytes(state));
}

// A recorded tokenizer with its first tokens alone.
std::string small_tokenizer(const std::string& form) {
  constexpr std::int64_t kTokens = 300;
  Json json = Json::parse(recorded_file(form + ".tokenizer.json"));
  Json& model = json["model"];
  const bool listed = model["vocab"].is_array();
  Json vocab = listed ? Json::array() : Json::object();
  for (const auto& [key, value] : model["vocab"].items()) {
    if (listed && vocab.size() < kTokens) vocab.push_back(value);
    if (!listed && value.get<std::int64_t>() < kTokens) vocab[key] = value;
  }
  if (model.contains("merges")) {
    Json merges = Json::array();
    for (const Json& merge : model["merges"]) {
      std::string left, right;
      if (merge.is_array()) {
        left = merge[0];
        right = merge[1];
      } else {
        const auto text = merge.get<std::string>();
        left = text.substr(0, text.find(' '));
        right = text.substr(left.size() + 1);
      }
      if (vocab.contains(left) && vocab.contains(right) && vocab.contains(left + right)) merges.push_back(merge);
    }
    model["merges"] = merges;
  }
  model["vocab"] = vocab;
  std::int64_t next = kTokens;
  std::map<std::string, std::int64_t> ids;
  Json added = Json::array();
  for (Json token : json.value("added_tokens", Json::array())) {
    if (added.size() == 6) break;
    const auto content = token["content"].get<std::string>();
    token["id"] = vocab.is_object() && vocab.contains(content) ? vocab[content].get<std::int64_t>() : next++;
    added.push_back(token);
  }
  json["added_tokens"] = added;
  if (json["post_processor"].is_object() && json["post_processor"].contains("special_tokens")) {
    Json& specials = json["post_processor"]["special_tokens"];
    for (const Json& one : added) {
      const auto content = one["content"].get<std::string>();
      if (specials.contains(content)) specials[content]["ids"] = {one["id"]};
    }
  }
  return json.dump();
}

// A recorded tokenizer.model with its first pieces alone, without the large table of a normalizer.
std::string small_sentencepiece(const std::string& form) {
  const std::string file = recorded_file(form + ".tokenizer.model");
  std::string small;
  int pieces = 0;
  std::size_t at = 0;
  for (WireField field; next_field(file, at, field);) {
    if ((field.number == 1 && ++pieces > 300) || field.end - field.begin > 20000) continue;
    small += file.substr(field.begin, field.end - field.begin);
  }
  return small;
}

void add_texts(Seeds& seeds) {
  for (const std::string& form : recorded_forms()) {
    if (form.starts_with("sentencepiece")) {
      seeds["tokenizer_model"].push_back(small_sentencepiece(form));
    } else {
      seeds["tokenizer_json"].push_back(small_tokenizer(form));
    }
  }
  for (const Json& chat : Json::parse(read_file(kSource / "test/chat_templates.json"))) {
    std::string source = chat["source"];
    auto& sources = seeds["chat_template"];
    if (std::find(sources.begin(), sources.end(), source) == sources.end()) sources.push_back(std::move(source));
  }
}

void add_text_files(Seeds& seeds) {
  add(seeds["train_config"], files_of("configs", ".json", 4000));
  for (const std::string& config : seeds["train_config"]) {
    const Json json = Json::parse(config);
    if (json.contains("model")) seeds["stack_config"].push_back(json["model"].dump());
  }
  add(seeds["foreign_config"], files_of("test/huggingface/folders", "config.json", 4000));
  add(seeds["json"], files_of("configs", ".json", 1200));
  add(seeds["json"], files_of("test/golden/columns", ".json", 2000));
  seeds["json"].push_back(R"({"a":[1,-0.0,1e-05,123456789012345678901234567890,"\ud83d\ude00\u000a"],"":null})");
  seeds["csv"] = {"a,b,c,d,e,f,g,h,class\n1,2,3,4,5,6,7,8,0\r\n\n 1e-3 ,-2.5,+0,4,5,6,7,8,2\n",
                  "0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8\n", "0 99\n12 13\n5 5\n"};
  seeds["metrics"] = {
      R"({"step":1,"loss":5.5,"loss_bits":"0x40b00000","lr":0.001,"lr_bits":"0x3a83126f","total_norm":null,"tokens":64})"
      "\n"
      R"({"step":1,"eval_loss":5.25,"bits_per_byte":7.5})"
      "\n"
      R"({"step":2,"loss":5.0,"loss_bits":"0x40a00000","lr":0.001,"parameters_sha256":"00","card":"00"})"
      "\n"};
  add(seeds["case_file"], files_of("test/golden/core", ".safetensors", 1200), std::string(1, '\0'));
  add(seeds["case_file"], files_of("test/golden/samba", ".safetensors", 1500), std::string(1, '\0'));
  add(seeds["case_file"], files_of("test/golden/columns", ".json", 20000), std::string(1, '\1'));
  add(seeds["case_file"], files_of("test/golden/hashes", ".json", 20000), std::string(1, '\1'));
  seeds["record"] = {
      R"({"schema":"samba.record/1","weights":"00","profile":"samba.fp32.v1","prompts":[{"ids":[1,2],"tokens":[3],)"
      R"("results":[{"name":"embedding","sha256":"00","shape":[2,4],"values":[0.5,1.0]}]}]})"};
}

// A file as torch.save writes it, of one tensor [4, 4].
std::string small_torch() {
  const auto text = [](const std::string& content) {
    return std::string("X") + static_cast<char>(content.size()) + std::string(3, '\0') + content;
  };
  const std::string storage = "(" + text("storage") + "ctorch\nFloatStorage\n" + text("0") + text("cpu") + "K\x10tQ";
  const std::string sizes = "K" + std::string(1, '\0') + "K\4K\4\x86K\4K\1\x86\x89";
  const std::string pickle = "\x80\2}q" + std::string(1, '\0') + "(" + text("a") +
                             "ctorch._utils\n_rebuild_tensor_v2\nq\1(" + storage + sizes +
                             "ccollections\nOrderedDict\n)RtRu.";
  return stored_zip({{"m/data.pkl", pickle}, {"m/byteorder", "little"}, {"m/data/0", std::string(64, '\1')}});
}

void add_foreign_files(Seeds& seeds) {
  add(seeds["safetensors"], files_of("test/golden/core", ".safetensors", 1000));
  const Path folders = kSource / "test/huggingface/folders";
  for (const char* form : {"mamba_ssm_1_bin", "mamba_ssm_3_bin"}) {
    seeds["torch"].push_back(read_file(folders / form / "pytorch_model.bin"));
  }
  seeds["torch"].push_back(small_torch());
  std::vector<std::string>& folder = seeds["folder"];
  folder.push_back('\0' + read_file(folders / "llama/config.json"));
  folder.push_back('\1' + read_file(folders / "llama/model.safetensors"));
  folder.push_back('\1' + read_file(folders / "llama_float16/model.safetensors"));
  folder.push_back('\2' + std::string(R"({"eos_token": {"content": "</s>"}, "bos_token": "<s>", "add_bos_token": true,
                                          "chat_template": [{"name": "default", "template": "[INST] <<SYS>>"}]})"));
  folder.push_back('\3' + read_file(folders / "llama/generation_config.json"));
  folder.push_back('\4' + std::string(R"({"weight_map": {"model.norm.weight": "model.safetensors"}})"));
  folder.push_back('\5' + small_tokenizer("llama2"));
  folder.push_back('\6' + std::string("<|im_start|>system\\nBe kind<|im_end|>"));
  folder.push_back('\7' + read_file(kSource / "test/golden/core/linear_1x1x1.safetensors"));
}

// Every file of a folder behind the byte that names it.
void add_folder(std::vector<std::string>& to, const Files& files) {
  char number = 0;
  for (const auto& [name, content] : files) to.push_back(number++ + content);
}

void add_folders(Seeds& seeds, const Path& folder) {
  add_folder(seeds["own_folder"], sound_folder());
  add_folder(seeds["token_shards"], sound_shards());
  add_folder(seeds["run_folder"], sound_run());
  seeds["preparation"].push_back(stopped_preparation().files.at("progress.json"));
  for (const char* name : {"config.json", "model.safetensors"}) {
    fs::copy_file(kSource / "test/huggingface/folders/llama" / name, folder / name);
  }
  seeds["hashes"].push_back(read_file(write_hashes(folder)));

  const std::string text = "one line\nand two\n\nthree\n";
  const std::string lines = "{\"text\": \"one\"}\n{\"prompt\": \"2+2=\", \"completion\": \"4\"}\n";
  const auto gzip = [](const char* deflated, std::size_t size) {  // what gzip makes, without a name or a time
    return std::string("\x1F\x8B\x08\0\0\0\0\0\x02\xFF", 10) + std::string(deflated, size);
  };
  const auto zstd = [](const std::string& content) {
    const std::vector<std::byte> frame = zstd_compress(std::as_bytes(std::span(content)));
    return std::string(reinterpret_cast<const char*>(frame.data()), frame.size());
  };
  std::vector<std::string>& documents = seeds["documents"];
  for (const char unit : {'\0', '\6', '\x0C'}) documents.push_back(unit + text);
  documents.push_back('\1' + lines);
  documents.push_back('\2' + gzip("\xCB\xCF\x4B\x55\xC8\xC9\xCC\x4B\xE5\x4A\xCC\x4B\x51\x28\x29\xCF\xE7\xE2\x2A"
                                  "\xC9\x28\x4A\x4D\xE5\x02\0\x24\x6A\x89\xE0\x18\0\0\0",
                                  34));
  documents.push_back('\3' + gzip("\xAB\x56\x2A\x49\xAD\x28\x51\xB2\x52\x50\xCA\xCF\x4B\x55\xAA\xE5\xAA\x56\x2A"
                                  "\x28\xCA\xCF\x2D\0\x8B\x18\x69\x1B\xD9\x2A\xE9\x28\x28\x25\x03\x05\x72\x52\x4B"
                                  "\x32\xF3\xF3\x40\xA2\x26\x40\x55\0\xC3\x50\xD2\x98\x36\0\0\0",
                                  56));
  documents.push_back('\4' + zstd(text));
  documents.push_back('\5' + zstd(lines));
}

}  // namespace

std::map<std::string, std::vector<std::string>> make_seeds() {
  Seeds seeds;
  const TemporaryFolder folder;
  for (std::string& file : files_of("test/golden/samba/corrupt", ".ckpt", 8000)) {
    const bool archive = file.starts_with("MOJOLEARN-SAMBA");
    seeds[archive ? "samba_archive" : "legacy_json"].push_back(std::move(file));
  }
  add_models(seeds, folder.path());
  add_blocks(seeds, folder.path());
  add_states(seeds, folder.path());
  add_texts(seeds);
  add_text_files(seeds);
  add_foreign_files(seeds);
  fs::create_directory(folder / "hashed");
  add_folders(seeds, folder / "hashed");
  return seeds;
}

void write_seeds(const Path& folder) {
  for (const auto& [reader, seeds] : make_seeds()) {
    fs::create_directories(folder);
    write_file_atomically(folder / (reader + ".dict"), dictionary(reader, seeds));
    fs::create_directories(folder / reader);
    for (std::size_t i = 0; i < seeds.size(); ++i) {
      write_file_atomically(folder / reader / (std::to_string(i)), seeds[i]);
    }
  }
}

}  // namespace samba::fuzz
