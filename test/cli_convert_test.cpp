// samba convert and inspect on every form of a model, as a user meets them: Samba stacks and general stacks, files and
// folders, float32 and packed.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>

#include "bits.h"
#include "command.h"
#include "samba/core/sha256.h"
#include "samba/formats/safetensors.h"
#include "samba/formats/stack_archive.h"
#include "samba/formats/stack_weight.h"

namespace samba {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using nlohmann::json;

json general_config() {
  json config = tiny_config("text.txt");
  config["steps"] = 4;
  config["model"] = {{"vocab", 256},
                     {"d_model", 32},
                     {"layers",
                      {{{"kind", "transformer"}, {"n_heads", 2}, {"intermediate", 32}, {"window", 8}},
                       {{"kind", "mamba1"}},
                       {{"kind", "mamba2"}}}}};
  return config;
}

// A trained run of either kind in a folder of its own.
class Model {
 public:
  explicit Model(bool general) {
    if (general) run_.write(general_config());
    const CommandResult result =
        run_.train("run", general ? std::vector<std::string>{} : std::vector<std::string>{"--set", "steps=10"});
    if (result.code != 0) throw std::runtime_error(result.err);
  }
  std::string path() const { return run_.file("run"); }
  std::string checkpoint() const {
    std::string name = read_file(run_.path() / "run/latest");
    name.pop_back();
    return run_.file("run/" + name);
  }
  TinyRun& run() { return run_; }

 private:
  TinyRun run_;
};

Model& samba_model() {
  static Model model(false);
  return model;
}
Model& general_model() {
  static Model model(true);
  return model;
}
std::vector<Model*> both_models() { return {&samba_model(), &general_model()}; }

// A folder for what a case writes.
struct Place {
  std::string operator()(const std::string& name) const { return (folder / name).string(); }
  TemporaryFolder folder;
};

CommandResult convert(const std::string& in, const std::string& out, std::vector<std::string> more = {}) {
  std::vector<std::string> arguments{"convert", in, out};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return samba_command(arguments);
}

void must_convert(const std::string& in, const std::string& out, const std::vector<std::string>& more = {}) {
  const CommandResult result = convert(in, out, more);
  INFO(result.err);
  REQUIRE(result.code == 0);
}

json inspected(const std::string& path, std::vector<std::string> more = {}) {
  std::vector<std::string> arguments{"inspect", path, "--json"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const CommandResult result = samba_command(arguments);
  INFO(result.err);
  REQUIRE(result.code == 0);
  return json::parse(result.out);
}

// Tokens with their log probabilities, and the logits of a prompt.
std::string decoded(const std::string& model, std::vector<std::string> more = {}) {
  std::vector<std::string> arguments{"decode",       "--model",    model,        "--prompt", "the quick ",
                                     "--max-tokens", "12",         "--seed",     "5",        "--temperature",
                                     "0.8",          "--logprobs", "--progress", "never"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const CommandResult result = samba_command(arguments);
  INFO(result.err);
  REQUIRE(result.code == 0);
  return result.out;
}

std::vector<float> logits(const std::string& model) {
  const TemporaryFolder folder;
  const std::string file = (folder / "logits.safetensors").string();
  const CommandResult result =
      samba_command({"prefill", "--model", model, "--prompt", "jumps over the lazy", "--logits", file});
  INFO(result.err);
  REQUIRE(result.code == 0);
  const SafetensorsFile written = read_safetensors(file);
  const auto values = written.tensors.at("logits").floats();
  return {values.begin(), values.end()};
}

std::size_t files_in(const fs::path& folder) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

TEST_CASE("a model goes through every form and comes back with the same bytes") {
  for (Model* model : both_models()) {
    const Place place;
    const std::string original = read_file(model->checkpoint());
    CHECK(is_stack_archive(model->checkpoint()) == (model == &general_model()));
    must_convert(model->path(), place("folder"));
    must_convert(place("folder"), place("again.samba"));
    CHECK(read_file(place("again.samba")) == original);
    must_convert(model->path(), place("small.samba"), {"--codec", "zstd"});
    CHECK(fs::file_size(place("small.samba")) < original.size());
    CHECK(inspected(place("small.samba"))["format"] == "samba.stack.v1");
    must_convert(place("small.samba"), place("folder2"), {"--to", "safetensors", "--dtype", "float32"});
    for (const char* name : {"model.safetensors", "optimizer.safetensors"}) {
      CHECK(read_file(place("folder2/") + name) == read_file(place("folder/") + name));
    }
    json described = json::parse(read_file(place("folder/config.json")));
    CHECK((described.contains("samba") ? described["samba"] : described).erase("run") == 1);  // a lone file has none
    CHECK(described == json::parse(read_file(place("folder2/config.json"))));
    const std::string text = decoded(model->path());
    for (const char* form : {"folder", "again.samba", "small.samba"}) CHECK(decoded(place(form)) == text);
    // A run goes on from the file that came back.
    fs::copy(model->path(), place("run"), fs::copy_options::recursive);
    fs::copy(place("again.samba"), place("run/checkpoints") + "/" + fs::path(model->checkpoint()).filename().string(),
             fs::copy_options::overwrite_existing);
    const CommandResult resumed = samba_command({"train", "--resume", place("run"), "--steps", "12"});
    INFO(resumed.err);
    CHECK(resumed.code == 0);
  }
}

TEST_CASE("a run goes on in the folder that convert made of it, with the bits of the run that was not converted") {
  for (Model* model : both_models()) {
    const Place place;
    const std::string copy = place("run"), folder = place("folder");
    fs::copy(model->path(), copy, fs::copy_options::recursive);
    must_convert(copy, folder);
    const auto resume = [&](const std::string& where) {
      const CommandResult result = samba_command({"train", "--resume", where, "--steps", "14", "--progress", "never"});
      INFO(result.err);
      CHECK(result.code == 0);
      return result;
    };
    resume(copy);
    CHECK_THAT(resume(folder).err, Contains("it is now in " + folder + ".old-1"));
    const auto last = [](const std::string& run, const char* extension) {
      return read_file(run + "/checkpoints/step-00000014" + extension);
    };
    CHECK(last(folder, ".samba") == last(copy, ".samba"));
    CHECK(last(folder, ".json") == last(copy, ".json"));  // the card of all steps, the position in the data
    CHECK(json::parse(read_file(folder + "/config.json")) == json::parse(read_file(copy + "/config.json")));
    // The metrics of all steps.
    CHECK(samba_command({"verify", "--compare", copy + "/metrics.jsonl", folder + "/metrics.jsonl"}).code == 0);
    CHECK(json::parse(read_file(folder + "/metrics.jsonl").substr(0, read_file(folder + "/metrics.jsonl").find('\n')))
              .at("step") == 1);
    const std::string first = std::to_string(model == &general_model() ? 5 : 11);
    const CommandResult replayed = samba_command({"verify", "--replay", folder, "--steps", first + "..14"});
    INFO(replayed.err << replayed.out);
    CHECK(replayed.code == 0);

    // What holds no run is refused and stays as it is.
    must_convert(folder + ".old-1", place("packed"), {"--dtype", "bfloat16"});
    const CommandResult packed = samba_command({"train", "--resume", place("packed")});
    CHECK(packed.code == 2);
    CHECK_THAT(packed.err, Contains("holds a model, but no training run to go on with"));
    json described = json::parse(read_file(folder + ".old-1/config.json"));
    (described.contains("samba") ? described["samba"] : described)["run"]["checkpoint"]["step"] = 99;
    write_text(folder + ".old-1/config.json", described.dump());
    const CommandResult other = samba_command({"train", "--resume", folder + ".old-1"});
    CHECK(other.code == 3);
    CHECK_THAT(other.err, Contains("does not belong to its model"));
    CHECK(fs::exists(folder + ".old-1/model.safetensors"));
  }
}

TEST_CASE("config.json of a run is a configuration to train with") {
  Model& model = samba_model();
  const Place place;
  const CommandResult result =
      samba_command({"train", "--config", model.path() + "/config.json", "--out", place("run")});
  INFO(result.err);
  CHECK(result.code == 0);
  CHECK(read_file(place("run/checkpoints/step-00000010.samba")) == read_file(model.checkpoint()));
}

TEST_CASE("packed files are about half and a quarter, and run with the bits of their expanded weights") {
  for (Model* model : both_models()) {
    const Place place;
    // Weights alone in float32, to compare sizes with.
    must_convert(model->path(), place("half.samba"), {"--dtype", "bf16"});
    must_convert(model->path(), place("quarter.samba"), {"--dtype", "int8"});
    must_convert(place("half.samba"), place("half32.samba"), {"--dtype", "float32"});
    must_convert(place("quarter.samba"), place("quarter32.samba"), {"--dtype", "float32"});
    const auto whole = static_cast<double>(fs::file_size(place("half32.samba")));
    CHECK(static_cast<double>(fs::file_size(place("half.samba"))) < 0.6 * whole);
    CHECK(static_cast<double>(fs::file_size(place("quarter.samba"))) < 0.38 * whole);
    for (const std::string form : {"half", "quarter"}) {
      const json packed = inspected(place(form + ".samba"));
      CHECK(packed["format"] == "samba.stack.v1");
      CHECK(packed["weight_format"] == (form == "half" ? "bfloat16" : "int8"));
      CHECK(packed["parameters_sha256"] == inspected(place(form + "32.samba"))["parameters_sha256"]);
      CHECK(packed["parameters_sha256"] != inspected(model->path())["parameters_sha256"]);
      CHECK(packed["config"] == inspected(model->path())["config"]);
      CHECK(packed["step"] == inspected(model->path())["step"]);

      must_convert(place(form + ".samba"), place(form + "-folder"));
      CHECK(inspected(place(form + "-folder"))["weight_format"] == packed["weight_format"]);
      must_convert(place(form + "-folder"), place(form + "-back.samba"));
      CHECK(read_file(place(form + "-back.samba")) == read_file(place(form + ".samba")));
      must_convert(model->path(), place(form + "-direct"),
                   {"--to", "safetensors", "--dtype", packed["weight_format"].get<std::string>()});
      CHECK(read_file(place(form + "-direct/model.safetensors")) ==
            read_file(place(form + "-folder/model.safetensors")));

      const std::vector<float> expected = logits(place(form + "32.samba"));
      CHECK(bits_equal(logits(place(form + ".samba")), expected));
      CHECK(bits_equal(logits(place(form + "-folder")), expected));
      const std::string text = decoded(place(form + "32.samba"));
      CHECK(decoded(place(form + ".samba")) == text);
      CHECK(decoded(place(form + "-folder"), {"--threads", "3"}) == text);
    }
    CHECK(logits(place("quarter.samba")) != logits(model->path()));
  }
}

TEST_CASE("a packed weight lies in the folder as bits, or as codes and exponents, in place of its name") {
  const Place place;
  must_convert(samba_model().path(), place("half"), {"--dtype", "bfloat16"});
  must_convert(samba_model().path(), place("quarter"), {"--dtype", "int8"});
  must_convert(samba_model().path(), place("whole"));
  const SafetensorsFile half = read_safetensors(place("half/model.safetensors"));
  const SafetensorsFile quarter = read_safetensors(place("quarter/model.safetensors"));
  const SafetensorsFile whole = read_safetensors(place("whole/model.safetensors"));
  CHECK(half.tensors.at("embed.weight.bits").dtype() == DType::uint16);
  CHECK(half.tensors.at("embed.weight.bits").shape() == Shape{256, 32});
  CHECK(half.tensors.count("embed.weight") == 0);
  CHECK(quarter.tensors.at("embed.weight.codes").dtype() == DType::int8);
  CHECK(quarter.tensors.at("embed.weight.exponents").shape() == Shape{256});
  CHECK(half.tensors.at("norm_f.weight").dtype() == DType::float32);
  CHECK_FALSE(fs::exists(place("half/optimizer.safetensors")));
  const PackedWeight expected = pack_one(whole.tensors.at("embed.weight"), WeightFormat::int8, "embed.weight").packed();
  CHECK(sha256_hex(quarter.tensors.at("embed.weight.codes").data(), 256 * 32) ==
        sha256_hex(expected.codes().data(), 256 * 32));
}

TEST_CASE("convert prints what goes where, in which dtype, with the largest error of a rounded weight") {
  const Place place;
  const CommandResult text = convert(samba_model().path(), place("out.samba"), {"--dtype", "int8", "--dry-run"});
  CHECK(text.code == 0);
  CHECK_THAT(text.out, Contains("from: streamed archive, float32\n") && Contains("to: samba.stack.v1, int8\n") &&
                           Contains("left out: moments") && Contains("nothing written (--dry-run)") &&
                           Contains("parameters/embed.weight -> parameters/embed.weight") && Contains("(256, 32)") &&
                           Contains("int8  largest error "));
  const json document =
      json::parse(convert(samba_model().path(), place("out"), {"--dtype", "bfloat16", "--dry-run", "--json"}).out);
  CHECK(document["written"] == false);
  CHECK(document["drops_training"] == true);
  CHECK(files_in(place.folder.path()) == 0);  // neither of them wrote anything
  bool seen = false;
  for (const json& entry : document["mapped"]) {
    if (entry["from"] != "parameters/embed.weight") {
      CHECK(entry.contains("largest_error") == (entry["shape"].size() == 2));
      continue;
    }
    seen = true;
    CHECK(entry["to"] == "model.safetensors/embed.weight.bits");
    CHECK(entry["dtype"] == "bfloat16");
    // bfloat16 keeps 8 bits: the error is at most 2^-9 of the value.
    must_convert(samba_model().path(), place("whole"));
    const SafetensorsFile whole = read_safetensors(place("whole/model.safetensors"));
    const Array& before = whole.tensors.at("embed.weight");
    const Array after = expand(pack_one(before, WeightFormat::bfloat16));
    double largest = 0.0;
    for (std::size_t i = 0; i < before.floats().size(); ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(before.floats()[i]) - double{after.floats()[i]}));
    }
    CHECK(largest > 0.0);
    CHECK(entry["largest_error"].get<double>() == largest);
  }
  CHECK(seen);
}

TEST_CASE("inspect shows dtype, stored bytes, codec and digest of every tensor, and the memory") {
  const Place place;
  must_convert(general_model().path(), place("quarter.samba"), {"--dtype", "int8", "--codec", "zstd"});
  const json packed = inspected(place("quarter.samba"), {"--memory"});
  StackArchiveReader reader(place("quarter.samba"));
  REQUIRE(packed["tensors"].size() == reader.parameters().size());
  std::uint64_t raw = 0;
  for (std::size_t i = 0; i < reader.parameters().size(); ++i) {
    const StackTensor& tensor = reader.parameters()[i];
    const json& shown = packed["tensors"][i];
    CHECK(shown["name"] == tensor.name);
    CHECK(shown["dtype"] == dtype_name(tensor.dtype));
    CHECK(shown["codec"] == tensor_codec_name(tensor.codec));
    CHECK(shown["stored_bytes"] == tensor.stored_bytes);
    CHECK(shown["sha256"] == tensor.sha256);
    raw += tensor.raw_bytes;
  }
  const json& memory = packed["memory"];
  CHECK(memory["training"].is_null());
  CHECK(memory["inference"]["weights"].get<std::uint64_t>() + memory["inference"]["panels"].get<std::uint64_t>() >=
        raw);
  CHECK(packed["profile"] == "samba.stack.fp32.v1");
  CHECK(packed["optimizer"].is_null());
  const json trained = inspected(general_model().path(), {"--memory"});
  CHECK(trained["optimizer"]["kind"] == "adamw");
  CHECK(trained["memory"]["training"]["moments"] == 8 * trained["parameters"].get<std::uint64_t>());
  const CommandResult text = samba_command({"inspect", place("quarter.samba")});
  CHECK_THAT(text.out, Contains("weight_format: int8") && Contains("(256, 32)") && Contains(" int8 ") &&
                           Contains(" zstd ") && Contains(" none "));
}

TEST_CASE("verify checks the models of every form") {
  const Place place;
  for (Model* model : both_models()) {
    fs::remove_all(place("folder"));
    must_convert(model->path(), place("packed.samba"), {"--dtype", "int8"});
    must_convert(model->path(), place("folder"), {"--dtype", "bf16"});
    for (const std::string& path : {model->path(), place("packed.samba"), place("folder")}) {
      const CommandResult result = samba_command({"verify", "--model", path, "--device", "cpu"});
      INFO(result.out << result.err);
      CHECK(result.code == 0);
    }
  }
}

TEST_CASE("packed models are for inference only, and training says so") {
  for (Model* model : both_models()) {
    const Place place;
    const fs::path run = place("run");
    fs::copy(model->path(), run, fs::copy_options::recursive);
    const fs::path archive = run / "checkpoints" / fs::path(model->checkpoint()).filename();
    must_convert(model->path(), archive.string(), {"--dtype", "int8"});
    const CommandResult packed = samba_command({"train", "--resume", run.string(), "--steps", "20"});
    CHECK(packed.code == 3);
    CHECK_THAT(packed.err, Contains("inference_only") && Contains("rounded to int8") &&
                               Contains("train the float32 model it was made from"));
    must_convert(archive.string(), archive.string(), {"--dtype", "float32"});
    const CommandResult expanded = samba_command({"train", "--resume", run.string(), "--steps", "20"});
    CHECK(expanded.code == 3);
    CHECK_THAT(expanded.err, Contains("without moments and optimizer"));
  }
}

TEST_CASE("what cannot be converted is refused before anything is written") {
  const Place place;
  const std::string model = samba_model().path();
  const auto message = [&](const std::string& in, const std::string& out, const std::vector<std::string>& more,
                           int code) {
    const std::size_t before = files_in(place.folder.path());
    const CommandResult result = convert(in, out, more);
    INFO(result.err);
    CHECK(result.code == code);
    CHECK(files_in(place.folder.path()) == before);
    return result.err;
  };
  CHECK_THAT(message("/nowhere", place("x"), {}, 2), Contains("there is no file or folder /nowhere"));
  CHECK_THAT(message(model, place("x"), {"--dtype", "int4"}, 2), Contains("--dtype") && Contains("int4"));
  CHECK_THAT(message(model, place("x"), {"--to", "onnx"}, 2), Contains("--to") && Contains("onnx"));
  CHECK_THAT(message(model, place("x"), {"--to", "gguf"}, 2),
             Contains("--to gguf: no architecture of GGUF files computes this stack"));
  CHECK_THAT(message(model, place("x"), {"--codec", "zstd"}, 2), Contains("--codec zstd needs --to samba"));
  CHECK_THAT(message(model, place("no/such/x.samba"), {}, 2), Contains("no/such/x.samba"));
  CHECK_THAT(message(place.folder.path().string(), place("x"), {}, 2), Contains("is no run folder"));
  write_text(place("text"), "no model");
  CHECK_THAT(message(place("text"), place("x.samba"), {}, 3), Contains("format"));
  fs::create_directories(place("full"));
  write_text(place("full/keep"), "mine");
  CHECK_THAT(message(model, place("full"), {}, 2), Contains("is not empty; give a new folder"));
  CHECK_THAT(message(model, place("full"), {"--to", "samba"}, 2), Contains("is a folder; a .samba file is needed"));
  CHECK_THAT(message(model, place("text"), {"--to", "safetensors"}, 2), Contains("is a file; a folder is needed"));

  // A damaged file says which tensor it is.
  must_convert(model, place("packed.samba"), {"--dtype", "int8"});
  std::string damaged = read_file(place("packed.samba"));
  damaged.back() = static_cast<char>(damaged.back() ^ 1);
  write_text(place("damaged.samba"), damaged);
  CHECK_THAT(message(place("damaged.samba"), place("x"), {}, 3),
             Contains("array_integrity:norm_f.weight") && Contains("the tensor norm_f.weight"));
  for (const char* command : {"inspect", "decode"}) {
    const std::vector<std::string> arguments =
        std::string(command) == "inspect"
            ? std::vector<std::string>{"inspect", place("damaged.samba")}
            : std::vector<std::string>{"decode", "--model", place("damaged.samba"), "--prompt", "a"};
    const CommandResult result = samba_command(arguments);
    CHECK(result.code == 3);
    CHECK_THAT(result.err, Contains("norm_f.weight"));
  }

  // A folder of another program.
  fs::create_directories(place("foreign"));
  write_text(place("foreign/config.json"), R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 64})");
  write_safetensors(place("foreign/model.safetensors"), ConstArrayMap{});
  CHECK_THAT(message(place("foreign"), place("x.samba"), {}, 2),
             Contains("config.json: model_type is missing; accepted: llama"));

  // A weight that the format turns into infinity.
  must_convert(model, place("huge"));
  SafetensorsFile file = read_safetensors(place("huge/model.safetensors"));
  file.tensors.at("embed.weight").floats()[3] = 3.4e38F;
  write_safetensors(place("huge/model.safetensors"), ConstArrayMap(file.tensors.begin(), file.tensors.end()));
  fs::remove(place("huge/hashes.json"));
  CHECK_THAT(message(place("huge"), place("x.samba"), {"--dtype", "bf16"}, 2),
             Contains("element 3 of embed.weight") && Contains("rounds to infinity"));
}

TEST_CASE("a folder of packed weights is refused by the part that is wrong") {
  const Place place;
  must_convert(general_model().path(), place("good"), {"--dtype", "int8"});
  const auto message = [&](const std::function<void(ArrayMap&, json&)>& change) {
    fs::remove_all(place("bad"));
    fs::copy(place("good"), place("bad"));
    fs::remove(place("bad/hashes.json"));
    SafetensorsFile file = read_safetensors(place("bad/model.safetensors"));
    json description = json::parse(read_file(place("bad/config.json")));
    change(file.tensors, description);
    write_safetensors(place("bad/model.safetensors"), ConstArrayMap(file.tensors.begin(), file.tensors.end()));
    write_text(place("bad/config.json"), description.dump());
    const CommandResult result = samba_command({"prefill", "--model", place("bad"), "--prompt", "a"});
    CHECK(result.code == 3);
    return result.err;
  };
  CHECK_THAT(message([](ArrayMap& t, json&) { t.erase("embed.weight.exponents"); }), Contains("embed.weight"));
  CHECK_THAT(message([](ArrayMap& t, json&) { t.erase("norm_f.weight"); }), Contains("norm_f.weight is missing"));
  CHECK_THAT(message([](ArrayMap& t, json&) { t["more"] = Array::zeros({2}); }),
             Contains("the tensor more is none of this model"));
  CHECK_THAT(message([](ArrayMap& t, json&) {
               t["embed.weight"] = Array::zeros({256, 32});
             }),
             Contains("embed.weight"));
  CHECK_THAT(message([](ArrayMap& t, json&) {
               t["embed.weight.codes"] = Array(DType::int8, {256, 31});
             }),
             Contains("embed.weight must be int8 (256, 32), got int8 (256, 31)"));
  CHECK_THAT(message([](ArrayMap& t, json&) { t["embed.weight.exponents"].values<std::int32_t>()[0] = 128; }),
             Contains("of embed.weight is not finite"));
  CHECK_THAT(message([](ArrayMap&, json& d) { d["state"]["weight_format"] = "bfloat16"; }),
             Contains("weight_format is \"bfloat16\", the parameters are int8"));
  CHECK_THAT(message([](ArrayMap&, json& d) { d["state"]["profile"] = "samba.stack.fp32.v9"; }),
             Contains("samba.stack.fp32.v9") && Contains("samba.stack.fp32.v1") && Contains("samba convert"));
  CHECK_THAT(message([](ArrayMap&, json& d) { d["state"]["config"]["layers"][0]["window"] = -1; }),
             Contains("/config/layers/0/window"));
}

}  // namespace
}  // namespace samba
