// The recordings of test/huggingface, with the weights by samba's names.
#pragma once

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "samba/formats/safetensors.h"

namespace samba {

// The samba name of a tensor of a layer or a model of transformers.
inline std::string samba_name(const std::string& kind, std::string name) {
  if (kind == "mamba2" && name == "norm.weight") return "block_norm.weight";
  static const std::array<std::pair<const char*, const char*>, 10> kParts = {{{"self_attn.", ""},
                                                                              {"mlp.", ""},
                                                                              {"mixer.", ""},
                                                                              {"c_fc.", "up_proj."},
                                                                              {"c_proj.", "down_proj."},
                                                                              {"model.norm.", "norm_f."},
                                                                              {"model.", ""},
                                                                              {"backbone.", ""},
                                                                              {"embed_tokens.", "embed."},
                                                                              {"embeddings.", "embed."}}};
  for (const auto& [theirs, ours] : kParts) {
    if (const auto found = name.find(theirs); found != std::string::npos) {
      name.replace(found, std::string(theirs).size(), ours);
    }
  }
  return name;
}

struct Recorded {
  explicit Recorded(const std::filesystem::path& path)
      : file(read_safetensors(path)), recording(nlohmann::json::parse(file.metadata.at("recording"))) {
    static const std::array<const char*, 7> kOthers = {"x", "y", "decode", "grad_output", "ids", "targets", "loss"};
    for (const auto& [name, array] : file.tensors) {
      const bool other = std::find(kOthers.begin(), kOthers.end(), name) != kOthers.end();
      if (other || name.starts_with("grad.") || name.starts_with("cache.")) continue;
      weights.emplace(samba_name(kind(), name), array);
    }
  }

  std::string kind() const { return recording.at("kind"); }
  nlohmann::json options() const { return recording.at("options"); }
  Index prefix() const { return recording.at("prefix"); }  // tokens before the single steps; 0: no decode on record
  bool has(const std::string& name) const { return file.tensors.contains(name); }
  const Array& at(const std::string& name) const { return file.tensors.at(name); }

  // The longest serial chain: the widest matrix product, or a sequence of this length.
  std::size_t chain(Index length) const {
    Index longest = length;
    for (const auto& [name, array] : weights) longest = std::max(longest, array.shape().back());
    return static_cast<std::size_t>(longest);
  }

  SafetensorsFile file;
  nlohmann::json recording;  // what the script says about it
  ArrayMap weights;
};

inline std::vector<std::filesystem::path> recordings(bool models) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(SAMBA_SOURCE_DIR "/test/huggingface")) {
    const std::filesystem::path& path = entry.path();
    if (path.extension() == ".safetensors" && path.stem().string().starts_with("model_") == models) {
      paths.push_back(path);
    }
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

inline std::vector<std::filesystem::path> recorded_layers() { return recordings(false); }
inline std::vector<std::filesystem::path> recorded_models() { return recordings(true); }

}  // namespace samba
