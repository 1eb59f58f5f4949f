#include "samba/generate/state_file.h"

#include <algorithm>
#include <charconv>

#include "samba/core/error.h"
#include "samba/core/sha256.h"
#include "samba/formats/canonical_json.h"
#include "samba/formats/sealed_safetensors.h"

namespace samba {

namespace {

constexpr const char* kFormat = "samba.state.v1";

std::string layer_prefix(std::size_t index) { return "layers." + std::to_string(index) + "."; }

[[noreturn]] void refuse_contents(const Path& path, const std::string& reason) {
  refuse_corrupt("state", path.string() + ": " + reason);
}

// The fields of the metadata, each once.
class Fields {
 public:
  Fields(const Path& path, const std::map<std::string, std::string>& metadata) : path_(path), metadata_(metadata) {}

  const std::string& text(const std::string& name) const {
    const auto found = metadata_.find(name);
    if (found == metadata_.end()) refuse_contents(path_, "the metadata have no " + name);
    return found->second;
  }
  std::uint64_t number(const std::string& name, std::uint64_t most) const {
    const std::string& digits = text(name);
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc{} || end != digits.data() + digits.size() || value > most) {
      refuse_contents(path_, name + " must be a number up to " + std::to_string(most) + ", got \"" + digits + "\"");
    }
    return value;
  }

 private:
  const Path& path_;
  const std::map<std::string, std::string>& metadata_;
};

std::string counters_text(const StateContents& contents) {
  nlohmann::json layers = nlohmann::json::array();
  for (const auto& counters : contents.counters) {
    nlohmann::json layer = nlohmann::json::object();
    for (const auto& [name, value] : counters) {
      if (name != "max_tokens") layer[name] = value;
    }
    layers.push_back(std::move(layer));
  }
  return canonical_json(layers);
}

std::vector<std::map<std::string, Index>> read_counters(const Path& path, const std::string& text) {
  nlohmann::json layers;
  try {
    layers = parse_json(text);
  } catch (const Error& error) {
    refuse_contents(path, std::string("counters: ") + error.what());
  }
  if (!layers.is_array()) refuse_contents(path, "counters must be a list with an object a layer");
  std::vector<std::map<std::string, Index>> result;
  for (const nlohmann::json& layer : layers) {
    if (!layer.is_object()) refuse_contents(path, "counters must be a list with an object a layer");
    auto& counters = result.emplace_back();
    for (const auto& [name, value] : layer.items()) {
      if (!value.is_number_integer()) refuse_contents(path, "counters: " + name + " must be an integer");
      counters[name] = value.get<Index>();
    }
  }
  return result;
}

std::string mode_of(const SambaStack& stack) { return std::string(numeric_mode_name(stack.executor().numeric_mode())); }

// What must be the model's own; `name` as people know it.
void require_equal(const Path& path, const char* name, const std::string& state, const std::string& model,
                   const char* advice) {
  if (state == model) return;
  refuse_value(path.string() + " is a state of another model: its " + name + " is " + state + ", the model's " + model +
               advice);
}

std::vector<std::int32_t> take_tokens(const Path& path, ArrayMap& tensors, Index vocab) {
  const auto found = tensors.find("tokens");
  if (found == tensors.end()) refuse_contents(path, "there is no tensor tokens");
  const Array& array = found->second;
  if (array.dtype() != DType::int32 || array.shape().size() != 1 || array.shape()[0] < 1) {
    refuse_contents(path, "tokens must be int32 and have one dimension");
  }
  const auto values = array.values<std::int32_t>();
  std::vector<std::int32_t> tokens(values.begin(), values.end());
  check_token_ids(tokens, vocab, path.string());
  tensors.erase(found);
  return tokens;
}

std::vector<float> take_logits(const Path& path, ArrayMap& tensors, Index vocab) {
  const auto found = tensors.find("logits");
  if (found == tensors.end()) refuse_contents(path, "all tokens are read, but there is no tensor logits");
  if (found->second.dtype() != DType::float32 || found->second.shape() != Shape{vocab}) {
    refuse_contents(path, "logits must be float32 of the shape " + shape_text({vocab}));
  }
  const auto values = found->second.floats();
  std::vector<float> logits(values.begin(), values.end());
  tensors.erase(found);
  return logits;
}

// The other tensors are pieces "layers.<i>.<piece>".
std::vector<ArrayMap> take_pieces(const Path& path, ArrayMap tensors, std::size_t layers) {
  std::vector<ArrayMap> pieces(layers);
  for (std::size_t i = 0; i < layers; ++i) {
    const std::string prefix = layer_prefix(i);
    for (auto at = tensors.lower_bound(prefix); at != tensors.end() && at->first.starts_with(prefix);) {
      pieces[i].emplace(at->first.substr(prefix.size()), std::move(at->second));
      at = tensors.erase(at);
    }
  }
  if (!tensors.empty()) refuse_contents(path, "unknown tensor " + tensors.begin()->first);
  return pieces;
}

}  // namespace

std::string config_digest(const StackConfig& config) { return sha256_hex(canonical_json(config_to_json(config))); }

void save_sequence(SambaStack& stack, const Sequence& sequence, const Path& path) {
  if (sequence.state == nullptr) refuse_value("there is no state to save: no token was read");
  const StateContents contents = sequence.state->contents();
  ConstArrayMap tensors;
  tensors.emplace("tokens",
                  ConstArray{DType::int32, {static_cast<Index>(sequence.tokens.size())}, sequence.tokens.data()});
  const bool complete = sequence.read() == sequence.tokens.size();
  if (complete && static_cast<Index>(sequence.logits.size()) != stack.config().vocab) {
    throw Error(ErrorKind::internal, "a sequence that was read to its end has no logits to be saved");
  }
  if (complete) tensors.emplace("logits", ConstArray{DType::float32, {stack.config().vocab}, sequence.logits.data()});
  for (std::size_t i = 0; i < contents.pieces.size(); ++i) {
    for (const auto& [name, array] : contents.pieces[i]) tensors.emplace(layer_prefix(i) + name, array.view());
  }
  write_sealed_safetensors(path, kFormat, tensors,
                           {{"profile", std::string(profile_name(stack.config()))},
                            {"numeric_mode", mode_of(stack)},
                            {"model_sha256", stack.parameters_sha256()},
                            {"config_sha256", config_digest(stack.config())},
                            {"counters", counters_text(contents)},
                            {"read", std::to_string(sequence.read())},
                            {"generated", std::to_string(sequence.generated)},
                            {"sample", std::to_string(sequence.sample)}});
}

Sequence load_sequence(SambaStack& stack, const Path& path) {
  SafetensorsFile file = read_sealed_safetensors(path, kFormat);
  const Fields fields(path, file.metadata);
  const StackConfig& config = stack.config();
  require_equal(path, "profile", fields.text("profile"), std::string(profile_name(config)),
                "; read its tokens again with this model");
  require_equal(path, "configuration (SHA-256)", fields.text("config_sha256"), config_digest(config), "");
  if (fields.text("numeric_mode") != mode_of(stack)) {
    refuse_value(path.string() + " was made in the numeric mode " + fields.text("numeric_mode") + ", this is " +
                 mode_of(stack) + "; give --numeric-mode " + fields.text("numeric_mode"));
  }
  require_equal(path, "weights (SHA-256)", fields.text("model_sha256"), stack.parameters_sha256(), "");
  Sequence sequence;
  sequence.tokens = take_tokens(path, file.tensors, config.vocab);
  StateContents contents;
  contents.tokens = static_cast<Index>(fields.number("read", sequence.tokens.size()));
  if (contents.tokens < 1) refuse_contents(path, "read must be at least 1");
  sequence.generated = fields.number("generated", sequence.tokens.size());
  sequence.sample = static_cast<std::uint32_t>(fields.number("sample", 0xFFFFFFFFU));
  if (static_cast<std::size_t>(contents.tokens) == sequence.tokens.size()) {
    sequence.logits = take_logits(path, file.tensors, config.vocab);
  }
  contents.counters = read_counters(path, fields.text("counters"));
  contents.pieces = take_pieces(path, std::move(file.tensors), config.layers.size());
  sequence.state = stack.restore_state(contents, contents.tokens);
  return sequence;
}

}  // namespace samba
