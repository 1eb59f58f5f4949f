#include "samba/generate/prefill.h"

#include <algorithm>
#include <charconv>
#include <sstream>

#include "samba/core/error.h"

namespace samba {

namespace {

// The stage of the stack that a name of ours means.
std::string stage_of(const StackConfig& config, const std::string& name) {
  if (name == "embed") return config.embedding_scale ? "embed_scaled" : "embed";
  if (name == "final") return "norm_f";
  return "layer" + name + ".out";
}

// Puts the rows of the chunks one behind the other.
class HiddenRecorder final : public StageRecorder {
 public:
  HiddenRecorder(SambaStack& stack, Index length, const std::vector<std::string>& names,
                 std::map<std::string, Array>& arrays)
      : stack_(stack) {
    for (const std::string& name : names) {
      Array& array = arrays.emplace(name, Array::zeros({length, stack.config().d_model})).first->second;
      wanted_.emplace(stage_of(stack.config(), name), &array);
    }
  }

  void chunk_starts(Index first) { first_ = first; }
  void record(std::string_view name, const Shape& shape, const float* device) override {
    const auto found = wanted_.find(std::string(name));
    if (found == wanted_.end()) return;
    const Index width = stack_.config().d_model;
    stack_.executor().memory().copy_to_host(found->second->floats().data() + first_ * width, device,
                                            static_cast<std::size_t>(element_count(shape)) * sizeof(float));
  }

 private:
  SambaStack& stack_;
  std::map<std::string, Array*> wanted_;
  Index first_ = 0;
};

// Stages go to the recorder while this lives.
struct Recording {
  Recording(SambaStack& stack, StageRecorder* recorder) : stack_(stack) { stack_.set_stage_recorder(recorder); }
  ~Recording() { stack_.set_stage_recorder(nullptr); }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  SambaStack& stack_;
};

}  // namespace

std::vector<std::string> parse_hidden_names(const StackConfig& config, const std::string& text) {
  std::vector<std::string> names;
  std::stringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    if (part == "all") {
      for (std::size_t i = 0; i < config.layers.size(); ++i) names.push_back(std::to_string(i));
      continue;
    }
    std::size_t layer = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), layer);
    const bool number = error == std::errc{} && end == part.data() + part.size() && layer < config.layers.size();
    if (!number && part != "embed" && part != "final") {
      refuse_value("--layers: must be numbers from 0 to " + std::to_string(config.layers.size() - 1) +
                   ", embed, final or all, separated by commas; got \"" + part + "\"");
    }
    names.push_back(number ? std::to_string(layer) : part);
  }
  if (names.empty()) refuse_value("--layers: must name at least one layer");
  return names;
}

PrefillResult prefill(SambaStack& stack, const std::vector<std::int32_t>& prompt, const PrefillOptions& options) {
  if (prompt.empty()) refuse_value("the prompt is empty; at least one token is needed");
  if (options.chunk < 1) refuse_value("chunk: must be >= 1, got " + std::to_string(options.chunk));
  const StackConfig& config = stack.config();
  check_token_ids(prompt, config.vocab, "the prompt");
  const auto length = static_cast<Index>(prompt.size());
  PrefillResult result;
  Sequence& sequence = result.sequence;
  sequence.tokens = prompt;
  reserve(stack, sequence, length);
  if (!options.logits && options.hidden.empty()) {
    read_tokens(stack, sequence, options.chunk);
    return result;
  }
  HiddenRecorder recorder(stack, length, options.hidden, result.hidden);
  const Recording recording(stack, &recorder);
  if (options.logits) result.logits = Array::zeros({length, config.vocab});
  const auto vocab = static_cast<std::size_t>(config.vocab);
  for (Index first = 0; first < length; first += options.chunk) {
    const Index count = std::min(options.chunk, length - first);
    recorder.chunk_starts(first);
    const Array logits = stack.forward(ConstArray{DType::int32, {1, count}, prompt.data() + first}, *sequence.state);
    if (options.logits) {
      std::copy(
          logits.floats().begin(), logits.floats().end(),
          result.logits.floats().begin() + static_cast<std::ptrdiff_t>(first) * static_cast<std::ptrdiff_t>(vocab));
    }
    const auto last = logits.floats().last(vocab);
    sequence.logits.assign(last.begin(), last.end());
  }
  return result;
}

}  // namespace samba
