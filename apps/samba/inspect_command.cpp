// samba inspect: what a checkpoint holds.

#include <algorithm>
#include <cstdio>
#include <map>

#include "commands.h"
#include "memory_report.h"
#include "mlp_commands.h"
#include "model_input.h"
#include "output.h"
#include "samba/convert/model_source.h"
#include "samba/core/error.h"
#include "samba/core/files.h"
#include "samba/core/json_fields.h"
#include "samba/core/resident.h"
#include "samba/core/sha256.h"
#include "samba/text/model_text.h"
#include "samba/train/checkpoint.h"
#include "samba/train/model_kind.h"

namespace samba::apps {

namespace {

struct InspectFlags {
  std::string path;
  bool memory = false;
  MemoryFlags sizes;  // of the calls whose memory is counted
};

TrainingCall training_call(const TrainConfig& config) {
  return {config.optimizer, config.batch, config.train.activation_budget_bytes};
}

// The steps of a checkpoint's run, which its folder tells; of a lone checkpoint, parts of as many rows as usual.
TrainingCall training_call(const ModelState& state, const Path& given) {
  const Path config = given / "config.json";
  if (std::filesystem::is_directory(given) && std::filesystem::exists(given / "latest") &&
      std::filesystem::exists(config)) {
    return training_call(parse_train_config(config_of_run(parse_json(read_file(config), config)), given));
  }
  TrainingCall call;
  if (state.training) call.optimizer = state.training->optimizer;
  call.batch.rows *= call.optimizer.accumulation_steps;
  return call;
}

// A training configuration, or the model of one, before there is a checkpoint.
bool is_configuration(const Path& path) {
  constexpr std::uintmax_t kMostBytes = 1 << 20;
  if (path.extension() != ".json" || !std::filesystem::is_regular_file(path)) return false;
  if (std::filesystem::file_size(path) > kMostBytes) return false;
  const nlohmann::json json = nlohmann::json::parse(read_file(path), nullptr, false);
  return json.is_object() && (json.contains("model") || json.contains("layers"));
}

nlohmann::ordered_json describe_configuration(const InspectFlags& flags, const CommonOptions& common) {
  const std::unique_ptr<Executor> executor = make_executor(common);
  nlohmann::json json = parse_json(read_file(flags.path), flags.path);
  if (model_kind_of_config(json) == ModelKind::mlp) {
    refuse_value(flags.path + ": memory is planned for configurations of stacks; this one is of an MLP");
  }
  StackConfig config;
  TrainingCall training;
  if (json.contains("model") && json.contains("data")) {
    const TrainConfig run = parse_train_config(config_of_run(json), Path(flags.path).parent_path());
    config = run.model;
    training = training_call(run);
  } else {
    const bool inside = json.contains("model");
    config = stack_config_from_json(inside ? json["model"] : json, inside ? "/model" : "");
  }
  auto result = nlohmann::ordered_json::object();
  result["file"] = flags.path;
  result["format"] = "configuration";
  result["parameters"] = Registry(config).total();
  result["profile"] = profile_name(config);
  result["config"] = config_to_json(config);
  result["memory"] = memory_json(*executor, config, {}, training, flags.sizes, {.program = resident_bytes()});
  return result;
}

nlohmann::ordered_json tensor_json(const StackTensor& tensor) {
  return {{"name", tensor.name},
          {"dtype", dtype_name(tensor.dtype)},
          {"shape", tensor.shape},
          {"stored_bytes", tensor.stored_bytes},
          {"codec", tensor_codec_name(tensor.codec)},
          {"sha256", tensor.sha256}};
}

// The form in which a file of another program holds most values.
std::string most_common_dtype(const OpenModel& model) {
  std::map<std::string, Index> values;
  for (const ModelTensor& tensor : model.tensors) values[tensor.dtype] += element_count(tensor.shape);
  const auto less = [](const auto& a, const auto& b) { return a.second < b.second; };
  return std::max_element(values.begin(), values.end(), less)->first;
}

nlohmann::ordered_json describe(const InspectFlags& flags, const CommonOptions& common) {
  if (!flags.memory && (flags.sizes.batch > 0 || flags.sizes.length > 0)) {
    refuse_value("--batch and --length need --memory");
  }
  const std::unique_ptr<Executor> executor = make_executor(common);
  AroundModel around{.program = resident_bytes()};
  const ModelPlace place = find_model(flags.path);
  const Path& path = place.path;
  if (model_kind_of_file(path) == ModelKind::mlp) return inspect_mlp(path, flags.memory);
  if (place.form == ModelForm::stack_archive) inspect_checkpoint(path, true);  // moments too
  const OpenModel model = open_model(place);
  const bool foreign = !is_own_form(place.form);
  auto result = nlohmann::ordered_json::object();
  result["file"] = path.string();
  result["format"] = model_form_name(model.form);
  result["weight_format"] = foreign ? most_common_dtype(model) : weight_format_name(weight_format(model));
  result["bytes"] = model.file_bytes;
  const nlohmann::json& state = model.description;
  result["step"] = state.value(state.contains("step") ? "step" : "t", nlohmann::json());
  result["parameters"] = Registry(model.state.config).total();
  Sha256 values;  // of the parameters as float32, in registry order
  nlohmann::ordered_json tensors = nlohmann::json::array();
  for (const ModelTensor& tensor : model.tensors) {
    tensors.push_back(tensor_json(describe_tensor(tensor, values)));
    if (!foreign) continue;
    tensors.back()["dtype"] = tensor.dtype;
    tensors.back()["stored_bytes"] = tensor.stored_bytes;
  }
  result["parameters_sha256"] = values.finish_hex();
  const std::uint64_t before_text = heap_bytes();
  const ModelText text = read_model_text(path, model.state.config.vocab);
  around.tokenizer = std::max(heap_bytes(), before_text) - before_text;
  result["tokenizer"] = text.tokenizer == nullptr ? nlohmann::json() : nlohmann::json(text.tokenizer->kind());
  result["config"] = config_to_json(model.state.config);
  for (const char* name : {"optimizer", "schedule", "rng", "numeric_mode", "profile"}) {
    result[name] = state.value(name, nlohmann::json());
  }
  result["tensors"] = std::move(tensors);
  if (flags.memory) {
    const TrainingCall training = training_call(model.state, flags.path);
    result["memory"] = memory_json(*executor, model.state.config, taken_formats(model), training, flags.sizes, around);
  }
  return result;
}

std::string configuration_text(const nlohmann::ordered_json& result) {
  return "file: " + result["file"].get<std::string>() +
         "\nformat: configuration\nparameters: " + result["parameters"].dump() +
         "\nprofile: " + result["profile"].get<std::string>() + "\n" + memory_table(result["memory"]);
}

std::string as_text(const nlohmann::ordered_json& result) {
  std::string text;
  for (const char* name : {"file", "format", "weight_format", "bytes", "step", "parameters", "parameters_sha256",
                           "tokenizer", "config", "optimizer", "schedule", "rng", "numeric_mode", "profile"}) {
    const auto& value = result[name];
    text += std::string(name) + ": " + (value.is_string() ? value.get<std::string>() : value.dump()) + "\n";
  }
  if (result.contains("data_schedule")) {
    const auto& schedule = result["data_schedule"];
    text += "data_schedule: " + (schedule.is_string() ? schedule.get<std::string>() : schedule.dump()) + "\n";
  }
  text += "tensors:\n";
  for (const auto& tensor : result["tensors"]) {
    const std::string name = tensor["name"].get<std::string>();
    const std::string shape = shape_text(tensor["shape"].get<Shape>());
    char line[384];
    std::snprintf(line, sizeof line, "  %-42s %-14s %-8s %12llu  %-4s  %s\n", name.c_str(), shape.c_str(),
                  tensor["dtype"].get_ref<const std::string&>().c_str(),
                  static_cast<unsigned long long>(tensor["stored_bytes"].get<std::uint64_t>()),
                  tensor["codec"].get_ref<const std::string&>().c_str(),
                  tensor["sha256"].get<std::string>().substr(0, 16).c_str());
    text += line;
  }
  if (result.contains("memory")) text += memory_table(result["memory"]);
  return text;
}

}  // namespace

void add_inspect_command(CLI::App& app, CommandLine& line) {
  auto flags = std::make_shared<InspectFlags>();
  CLI::App* command = app.add_subcommand("inspect", "show what a checkpoint holds, after checking all of it");
  command->add_option("PATH", flags->path, std::string(kModelForms) + "; or a configuration, for its memory")
      ->required();
  command->add_flag("--memory", flags->memory, "memory needed to train and to decode");
  command
      ->add_option("--batch", flags->sizes.batch,
                   "with --memory: rows of a call (default: 1 to decode; to train, the configuration's, or 8)")
      ->check(at_least_one());
  command
      ->add_option("--length", flags->sizes.length,
                   "with --memory: tokens of a row (default: 1024 to decode; to train, the configuration's, or 128)")
      ->check(at_least_one());
  line.on(command, "samba inspect runs/first --memory", [flags, &line] {
    if (is_configuration(flags->path)) {
      const nlohmann::ordered_json result = describe_configuration(*flags, line.common);
      print(line.common.json ? json_line(result) : configuration_text(result));
      return 0;
    }
    const nlohmann::ordered_json result = describe(*flags, line.common);
    print(line.common.json ? json_line(result) : as_text(result));
    return 0;
  });
}

}  // namespace samba::apps
