// Random bits flipped in files of every form, one at a time: each is detected or without consequence. Where a form has
// no digests of its own, the flip may make other numbers of the tensor it hits: then the digests beside the file find
// it.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <random>

#include "command.h"
#include "recorded_tokenizers.h"
#include "samba/backends/registry.h"
#include "samba/convert/model_source.h"
#include "samba/core/error.h"
#include "samba/core/sha256.h"
#include "samba/formats/file_hashes.h"
#include "samba/generate/prefill.h"
#include "samba/generate/state_file.h"
#include "samba/text/tokenizer.h"
#include "samba/train/mlp_checkpoint.h"

namespace samba {

struct FlipForm {
  std::string name;
  Path file;  // whose bits are flipped
  // What the reader makes of the file as it is; an Error where it refuses it.
  std::function<std::string()> digest;
  Path hashed = {};  // the folder or file that has digests beside it; empty: the form has its own
};

struct FlipCounts {
  int flips = 0;
  int refused = 0;
  int same = 0;
  int other = 0;         // read without a word, with another result
  int found_beside = 0;  // of all flips, by the digests beside the file
};

inline std::string digest_of_model(Executor& executor, const Path& path) {
  const ModelPlace place = find_model(path);
  const StoredModel model = read_model(place, Reading::everything);
  Sha256 hash;
  hash.update(model.description.dump());
  for (const StackTensor& tensor : model.tensors) hash.update(tensor.name + tensor.sha256);
  for (const auto& [name, array] : model.moments) {
    hash.update(name);
    hash.update(array.data(), array.byte_size());
  }
  const std::string digest = hash.finish_hex();
  // What was read can be computed with, whatever it is.
  static std::map<std::string, int> seen;
  if (seen[path.string() + digest]++ == 0) {
    const auto stack = load_model(executor, place);
    prefill(*stack, {1, 2, 3});
  }
  return digest;
}

inline std::string digest_of_tokenizer(const Path& path) {
  const auto tokenizer = load_tokenizer(path);
  Sha256 hash;
  for (std::int32_t id = 0; id < tokenizer->vocabulary_size(); ++id) hash.update(tokenizer->piece(id) + "\n");
  const std::string text = "The quick  brown f\u00f6x \U0001f98a jumps\n\n over 12345 lazy dogs' tails.";
  const auto ids = tokenizer->encode(text, {.add_special_tokens = true});
  hash.update(ids.data(), ids.size() * sizeof ids[0]);
  hash.update(tokenizer->decode(ids));
  return hash.finish_hex();
}

inline std::string digest_of_state(SambaStack& stack, const Path& path) {
  const Sequence sequence = load_sequence(stack, path);
  Sha256 hash;
  hash.update(sequence.tokens.data(), sequence.tokens.size() * sizeof sequence.tokens[0]);
  hash.update(sequence.logits.data(), sequence.logits.size() * sizeof(float));
  hash.update(std::to_string(sequence.generated) + " " + std::to_string(sequence.sample));
  for (const ArrayMap& layer : sequence.state->contents().pieces) {
    for (const auto& [name, array] : layer) {
      hash.update(name);
      hash.update(array.data(), array.byte_size());
    }
  }
  return hash.finish_hex();
}

// The files that are damaged, made anew.
class FlipFiles {
 public:
  FlipFiles() : executor_(make_executor("cpu", {1, "", NumericMode::identical})) {
    nlohmann::json config = tiny_config("text.txt");
    config["steps"] = 2;
    config["model"]["d_model"] = 64;
    config["model"]["intermediate"] = 96;
    tiny_.write(config);
    must({"train", "--config", file("tiny.json"), "--out", file("run")});
    must({"convert", file("run"), file("folder")});
    must({"convert", file("run"), file("packed.samba"), "--dtype", "bfloat16", "--codec", "zstd"});
    must({"convert", file("run"), file("plain.samba"), "--dtype", "int8"});
    must({"prefill", "--model", file("run"), "--prompt", std::string(300, 'a'), "--save-state", file("state")});
    const Path source = Path(SAMBA_SOURCE_DIR) / "test";
    std::filesystem::copy(source / "gguf/qwen3.gguf", file("model.gguf"));
    std::filesystem::copy(source / "gguf/llama_mixed.gguf", file("mixed.gguf"));
    std::filesystem::copy(source / "huggingface/folders/mamba2", file("foreign"));
    std::filesystem::copy(source / "huggingface/folders/mamba_ssm_2_bin", file("torch"));
    for (const char* name : {"model.gguf", "mixed.gguf", "foreign", "torch"}) write_hashes(file(name));
    must({"train-tokenizer", (source / "../README.md").string(), (source / "../docs").string(), "--vocab-size", "2000",
          "--out", file("tokenizer.json")});
    stack_ = load_model(*executor_, find_model(file("run")));
  }

  std::vector<FlipForm> forms() {
    const auto model = [this](const std::string& name, const std::string& damaged, const std::string& read,
                              const std::string& hashed = "") {
      return FlipForm{name, file(damaged), [this, read] { return digest_of_model(*executor_, file(read)); },
                      hashed.empty() ? Path() : Path(file(hashed))};
    };
    return {model("streamed archive", "run/checkpoints/step-00000002.samba", "run"),
            model("samba.stack.v1, bfloat16, zstd", "packed.samba", "packed.samba"),
            model("samba.stack.v1, int8", "plain.samba", "plain.samba"),
            model("samba folder, weights", "folder/model.safetensors", "folder", "folder"),
            model("samba folder, moments", "folder/optimizer.safetensors", "folder", "folder"),
            model("samba folder, config.json", "folder/config.json", "folder", "folder"),
            {"state", file("state"), [this] { return digest_of_state(*stack_, file("state")); }},
            model("GGUF, float32", "model.gguf", "model.gguf", "model.gguf"),
            model("GGUF, quantized", "mixed.gguf", "mixed.gguf", "mixed.gguf"),
            model("Hugging Face folder, weights", "foreign/model.safetensors", "foreign", "foreign"),
            model("Hugging Face folder, config.json", "foreign/config.json", "foreign", "foreign"),
            model("PyTorch file", "torch/pytorch_model.bin", "torch", "torch"),
            {"tokenizer.json", file("tokenizer.json"), [this] { return digest_of_tokenizer(file("tokenizer.json")); }}};
  }
  std::string file(const std::string& name) const { return tiny_.file(name); }

 private:
  static void must(const std::vector<std::string>& arguments) {
    const CommandResult result = samba_command(arguments);
    if (result.code != 0) throw std::runtime_error(result.err);
  }

  TinyRun tiny_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<SambaStack> stack_;
};

inline void flip_bit(const Path& path, std::uint64_t bit) {
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  unsigned char byte = 0;
  REQUIRE(::pread(descriptor, &byte, 1, static_cast<off_t>(bit / 8)) == 1);
  byte = static_cast<unsigned char>(byte ^ (1U << (bit % 8)));
  REQUIRE(::pwrite(descriptor, &byte, 1, static_cast<off_t>(bit / 8)) == 1);
  ::close(descriptor);
}

// Flips `flips` random bits, one at a time.
inline FlipCounts flip_bits(const FlipForm& form, int flips, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const std::uint64_t bits = 8 * std::filesystem::file_size(form.file);
  const std::string intact = form.digest();
  FlipCounts counts;
  for (; counts.flips < flips; ++counts.flips) {
    const std::uint64_t bit = random() % bits;
    INFO(form.name << ": bit " << bit % 8 << " of byte " << bit / 8);
    flip_bit(form.file, bit);
    const auto start = std::chrono::steady_clock::now();
    try {
      (form.digest() == intact ? counts.same : counts.other) += 1;
    } catch (const Error& error) {
      INFO(error.what());
      CHECK(error.kind() != ErrorKind::internal);
      ++counts.refused;
    }
    if (!form.hashed.empty()) {
      try {
        check_hashes(form.hashed);
      } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::corrupt);
        ++counts.found_beside;
      }
    }
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
    flip_bit(form.file, bit);
  }
  CHECK(form.digest() == intact);
  return counts;
}

// Runs over every form and checks what must hold of the counts; tells them.
inline void flip_all(int flips, std::uint64_t seed) {
  FlipFiles files;
  FlipCounts total;
  for (const FlipForm& form : files.forms()) {
    INFO(form.name);
    const FlipCounts counts = flip_bits(form, flips, seed++);
    const bool tokenizer = form.name == "tokenizer.json";
    if (form.hashed.empty() && !tokenizer) {
      CHECK(counts.other == 0);
      CHECK(counts.refused == flips);
    }
    if (!form.hashed.empty()) CHECK(counts.found_beside == flips);
    if (form.name == "samba folder, weights" || form.name == "samba folder, moments") CHECK(counts.refused == flips);
    total.flips += counts.flips;
    WARN(form.name << " (" << std::filesystem::file_size(form.file) << " bytes): " << counts.flips << " flips, "
                   << counts.refused << " refused, " << counts.same << " the same, " << counts.other
                   << " other numbers or pieces"
                   << (form.hashed.empty() ? ""
                                           : ", " + std::to_string(counts.found_beside) +
                                                 " found by the digests "
                                                 "beside it"));
  }
  WARN(total.flips << " flips in all: no crash, none that hangs");
}

}  // namespace samba
