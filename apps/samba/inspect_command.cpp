// samba inspect: what a checkpoint holds.

#include <cstdio>

#include "commands.h"
#include "output.h"
#include "samba/core/error.h"
#include "samba/core/sha256.h"
#include "samba/generate/decode_session.h"
#include "samba/text/tokenizer.h"
#include "samba/train/checkpoint.h"
#include "samba/train/run_folder.h"

namespace samba::apps {

namespace {

constexpr Index kStatePositions = 1024;  // the decode state is counted for this many

struct InspectFlags {
  std::string path;
  bool memory = false;
};

nlohmann::ordered_json memory_json(SambaStack& stack) {
  const auto parameters = static_cast<std::uint64_t>(stack.registry().total()) * sizeof(float);
  const Index positions = std::min(kStatePositions, position_limit(stack.config()));
  const auto state = stack.allocate_state(1, positions);
  std::uint64_t state_bytes = 0;
  for (std::size_t layer = 0; layer < state->layers(); ++layer) {
    for (const auto& [name, piece] : state->layer(layer).pieces()) state_bytes += piece.byte_size();
  }
  return {{"parameters_bytes", parameters},
          {"moments_bytes", 2 * parameters},
          {"gradient_bytes", parameters},
          {"decode_state_bytes_per_row", state_bytes},
          {"decode_state_positions", positions}};
}

std::string bytes_text(std::uint64_t bytes) {
  char text[48];
  std::snprintf(text, sizeof text, "%.2f MiB", static_cast<double>(bytes) / (1024.0 * 1024.0));
  return text;
}

nlohmann::ordered_json describe(const InspectFlags& flags, const CommonOptions& common) {
  const Path path = find_checkpoint(flags.path);
  const CheckpointSummary summary = inspect_checkpoint(path, true);
  const std::unique_ptr<Executor> executor = make_executor(common);
  const auto stack = load_for_inference(*executor, path);
  nlohmann::ordered_json result;
  result["file"] = path.string();
  result["format"] = summary.legacy ? "legacy JSON" : "streamed archive";
  result["bytes"] = summary.bytes;
  result["step"] = summary.state.value("t", nlohmann::json());
  result["parameters"] = stack->registry().total();
  result["parameters_sha256"] = stack->parameters_sha256();
  const bool bytes = summary.config.vocab == kByteVocabulary;
  result["tokenizer"] = bytes ? nlohmann::json("bytes") : nlohmann::json();
  result["config"] = config_to_json(summary.config);
  for (const char* name : {"optimizer", "schedule", "rng", "numeric_mode", "profile"}) {
    result[name] = summary.state.value(name, nlohmann::json());
  }
  result["tensors"] = nlohmann::json::array();
  const ArrayMap weights = stack->weights();
  for (const ParameterTensor& tensor : stack->registry().tensors()) {
    const Array& array = weights.at(tensor.name);
    result["tensors"].push_back(nlohmann::ordered_json{{"name", tensor.name},
                                                       {"dtype", "float32"},
                                                       {"shape", tensor.shape},
                                                       {"sha256", sha256_hex(array.data(), array.byte_size())}});
  }
  if (flags.memory) result["memory"] = memory_json(*stack);
  return result;
}

std::string as_text(const nlohmann::ordered_json& result) {
  std::string text;
  for (const char* name : {"file", "format", "bytes", "step", "parameters", "parameters_sha256", "tokenizer", "config",
                           "optimizer", "schedule", "rng", "numeric_mode", "profile"}) {
    const auto& value = result[name];
    text += std::string(name) + ": " + (value.is_string() ? value.get<std::string>() : value.dump()) + "\n";
  }
  text += "tensors:\n";
  for (const auto& tensor : result["tensors"]) {
    const std::string name = tensor["name"].get<std::string>();
    const std::string shape = shape_text(tensor["shape"].get<Shape>());
    char line[256];
    std::snprintf(line, sizeof line, "  %-42s %-14s %s\n", name.c_str(), shape.c_str(),
                  tensor["sha256"].get<std::string>().substr(0, 16).c_str());
    text += line;
  }
  if (result.contains("memory")) {
    const auto& memory = result["memory"];
    text += "memory:\n  parameters " + bytes_text(memory["parameters_bytes"]) + "; training adds moments " +
            bytes_text(memory["moments_bytes"]) + ", a gradient " + bytes_text(memory["gradient_bytes"]) +
            " and the activations\n  decode state of one row with " + memory["decode_state_positions"].dump() +
            " positions: " + bytes_text(memory["decode_state_bytes_per_row"]) + "\n";
  }
  return text;
}

}  // namespace

void add_inspect_command(CLI::App& app, CommandLine& line) {
  auto flags = std::make_shared<InspectFlags>();
  CLI::App* command = app.add_subcommand("inspect", "show what a checkpoint holds, after checking all of it");
  command->add_option("PATH", flags->path, "a .samba file, a legacy JSON checkpoint or a run folder")->required();
  command->add_flag("--memory", flags->memory, "memory needed to train and to decode");
  line.on(command, "samba inspect runs/first --memory", [flags, &line] {
    const nlohmann::ordered_json result = describe(*flags, line.common);
    print(line.common.json ? json_line(result) : as_text(result));
    return 0;
  });
}

}  // namespace samba::apps
