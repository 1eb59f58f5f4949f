#include "mlp_commands.h"

#include <charconv>
#include <numeric>

#include "memory_report.h"
#include "model_input.h"
#include "output.h"
#include "samba/convert/folder_run.h"
#include "samba/core/error.h"
#include "samba/core/resident.h"
#include "samba/core/sha256.h"
#include "samba/formats/canonical_json.h"
#include "samba/formats/safetensors.h"
#include "samba/generate/sampler.h"
#include "samba/train/mlp_data.h"
#include "samba/train/mlp_folder.h"
#include "samba/train/model_kind.h"

namespace samba::apps {

namespace {

// The shortest text that reads back to the same float32.
std::string shortest(float value) {
  char text[32];
  const std::to_chars_result result = std::to_chars(text, text + sizeof text, value);
  return {text, result.ptr};
}

// All rows through the network, 256 at a time.
Array logits_of(MlpInference& model, const MlpRows& rows) {
  std::vector<float> values;
  const auto count = static_cast<std::uint64_t>(rows.rows());
  const auto most = static_cast<std::uint64_t>(kMlpMostRows);
  for (std::uint64_t first = 0; first < count; first += most) {
    std::vector<std::uint64_t> part(std::min(most, count - first));
    std::iota(part.begin(), part.end(), first);
    const Array logits = model.predict_logits(rows.features_of(part));
    values.insert(values.end(), logits.floats().begin(), logits.floats().end());
  }
  return Array::from_floats({rows.rows(), kMlpClasses}, values);
}

std::string as_lines(const Array& logits, bool json) {
  std::string output;
  for (std::size_t row = 0; row < static_cast<std::size_t>(logits.shape()[0]); ++row) {
    const auto values = logits.floats().subspan(row * static_cast<std::size_t>(kMlpClasses), kMlpClasses);
    const std::int32_t predicted = predicted_class(logits, row);
    if (json) {
      nlohmann::ordered_json line{{"row", row}, {"class", predicted}, {"logits", nlohmann::json::array()}};
      for (const float value : values) line["logits"].push_back(static_cast<double>(value));
      output += json_line(line);
      continue;
    }
    output += "row " + std::to_string(row) + ": class " + std::to_string(predicted) + "  logits";
    for (const float value : values) output += " " + shortest(value);
    output += "\n";
  }
  return output;
}

std::string score_of(const Array& logits, const MlpRows& rows, bool json) {
  if (!rows.has_classes()) refuse_value("--score needs rows with a class behind their 8 features");
  double total = 0.0;
  std::size_t right = 0;
  for (std::size_t row = 0; row < rows.classes.size(); ++row) {
    const auto values = logits.floats().subspan(row * static_cast<std::size_t>(kMlpClasses), kMlpClasses);
    total -= static_cast<double>(log_probability(values, rows.classes[row]));
    right += predicted_class(logits, row) == rows.classes[row] ? 1 : 0;
  }
  const auto count = static_cast<double>(rows.classes.size());
  const double loss = total / count;
  const double accuracy = static_cast<double>(right) / count;
  if (json) return json_line({{"rows", rows.classes.size()}, {"loss", loss}, {"accuracy", accuracy}});
  char text[128];
  std::snprintf(text, sizeof text, "rows: %zu\nloss: %.6f\naccuracy: %.6f\n", rows.classes.size(), loss, accuracy);
  return text;
}

MlpState state_of(const Path& path, nlohmann::json* run = nullptr) {
  if (std::filesystem::is_directory(path)) return read_mlp_folder(path, run);
  if (run != nullptr) *run = run_of_checkpoint(path);
  return read_mlp_checkpoint(path);
}

nlohmann::ordered_json tensors_json(const ConstArrayMap& arrays) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const auto& [name, array] : arrays) {
    const auto bytes = static_cast<std::size_t>(array.size()) * dtype_size(array.dtype);
    list.push_back({{"name", name},
                    {"dtype", dtype_name(array.dtype)},
                    {"shape", array.shape},
                    {"stored_bytes", bytes},
                    {"codec", "none"},
                    {"sha256", sha256_hex(array.data, bytes)}});
  }
  return list;
}

std::uint64_t size_of(const Path& path) {
  if (!std::filesystem::is_directory(path)) return std::filesystem::file_size(path);
  std::uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path)) bytes += entry.file_size();
  return bytes;
}

}  // namespace

std::string prefill_mlp(const Path& model, const MlpPrefill& options, const CommonOptions& common) {
  if (options.file.empty()) refuse_value("an MLP takes rows of 8 features: give them with --file ROWS.csv");
  const std::unique_ptr<Executor> executor = make_executor(common);
  const auto network = open_mlp(*executor, model);
  const MlpRows rows = options.file == "-" ? parse_mlp_rows(read_text("-"), "stdin", ClassColumn::optional)
                                           : read_mlp_rows({options.file}, ClassColumn::optional);
  const Array logits = logits_of(*network, rows);
  if (options.score) return score_of(logits, rows, common.json);
  if (options.logits.empty()) return as_lines(logits, common.json);
  write_safetensors(options.logits, {{"logits", logits.view()}});
  return common.json ? json_line({{"logits", options.logits}, {"rows", rows.rows()}}) : options.logits + "\n";
}

nlohmann::ordered_json inspect_mlp(const Path& model, bool memory) {
  const bool folder = std::filesystem::is_directory(model);
  auto result = nlohmann::ordered_json::object();
  result["file"] = model.string();
  result["format"] = folder ? "safetensors folder of an MLP" : "MLP checkpoint";
  ConstArrayMap stored;
  SafetensorsFile file;
  MlpState state;
  ArrayMap arrays;
  WeightFormat format = WeightFormat::float32;
  if (folder) {
    file = read_safetensors(model / "model.safetensors");
    for (const auto& [name, array] : file.tensors) stored.emplace(name, array.view());
    format = weight_format(weights_of_stored(stored));
  }
  const bool trains = format == WeightFormat::float32;
  if (trains) {
    state = state_of(model);
    arrays = mlp_arrays(state.weights);
    if (!folder) {
      for (const auto& [name, array] : arrays) stored.emplace(name, array.view());
    }
  } else {
    arrays = expand(weights_of_stored(stored));
  }
  const std::vector<float> values = flat_mlp_arrays(arrays);
  result["weight_format"] = weight_format_name(format);
  result["bytes"] = size_of(model);
  result["step"] = trains ? nlohmann::json(state.step) : nlohmann::json();
  result["parameters"] = kMlpParameters;
  result["parameters_sha256"] = sha256_hex(values.data(), values.size() * sizeof(float));
  result["tokenizer"] = nullptr;
  result["config"] = {{"kind", "mlp"}, {"layers", {kMlpFeatures, kMlpHidden, kMlpClasses}}};
  result["optimizer"] = nullptr;
  if (trains) {
    const OptimizerSettings& settings = state.settings;
    result["optimizer"] = {{"kind", "adamw"},         {"lr", settings.lr},   {"beta1", settings.beta1},
                           {"beta2", settings.beta2}, {"eps", settings.eps}, {"weight_decay", settings.weight_decay}};
  }
  result["schedule"] = nullptr;
  result["rng"] = nullptr;
  result["numeric_mode"] = "identical";
  result["profile"] = "neural-training.fp32.v1";
  result["data_schedule"] =
      trains ? nlohmann::json(canonical_json(state.data_schedule, ControlEscapes::short_forms)) : nlohmann::json();
  result["tensors"] = tensors_json(stored);
  if (memory) {
    const auto bytes = static_cast<std::uint64_t>(kMlpParameters) * sizeof(float);
    MemoryPlan inference, training;
    inference.weights = training.weights = training.gradients = bytes;
    training.moments = 2 * bytes;
    const AroundModel around{.program = resident_bytes()};
    result["memory"] = {{"inference", plan_json(inference, around)}, {"training", plan_json(training, around)}};
  }
  return result;
}

std::string convert_mlp(const Path& in, const Path& out, const MlpConversion& options, const CommonOptions& common) {
  MlpRunRecord record;
  const MlpState state = state_of(in, &record.run);
  record.metrics =
      metrics_until(std::filesystem::is_directory(in) ? in / kMetricsName : metrics_of_checkpoint(in), state.step);
  if (options.to_file && options.format != WeightFormat::float32) {
    refuse_value("--dtype " + std::string(weight_format_name(options.format)) +
                 " needs --to safetensors: the MLP checkpoint file holds float32 weights");
  }
  if (!options.dry_run) {
    if (options.to_file) {
      save_mlp_checkpoint(state, out);
    } else {
      write_mlp_folder(state, options.format, out, record);
    }
  }
  const ArrayMap arrays = mlp_arrays(state.weights);
  const WeightMap weights = pack(arrays, options.format);
  nlohmann::ordered_json result{{"in", in.string()},
                                {"out", out.string()},
                                {"to", options.to_file ? "MLP checkpoint" : "safetensors"},
                                {"weight_format", weight_format_name(options.format)},
                                {"drops_training", options.format != WeightFormat::float32},
                                {"written", !options.dry_run}};
  std::string text =
      "to: " + result["to"].get<std::string>() + ", " + std::string(weight_format_name(options.format)) + "\n";
  if (result["drops_training"]) {
    text += "left out: moments, settings and data schedule; rounded weights are for inference only\n";
  }
  for (const MlpTensor& tensor : mlp_tensors()) {
    const Weight& weight = weights.at(tensor.name);
    const std::string dtype(weight_format_name(weight.format()));
    result["mapped"].push_back({{"from", tensor.name}, {"to", tensor.name}, {"shape", tensor.shape}, {"dtype", dtype}});
    text += tensor.name + "  " + shape_text(tensor.shape) + "  " + dtype;
    if (weight.is_packed()) {
      const Array values = expand(weight.view());
      double largest = 0.0;
      for (Index i = 0; i < tensor.size; ++i) {
        const auto at = static_cast<std::size_t>(i);
        const auto given = static_cast<double>(arrays.at(tensor.name).floats()[at]);
        largest = std::max(largest, std::abs(given - static_cast<double>(values.floats()[at])));
      }
      result["mapped"].back()["largest_error"] = largest;
      char error[48];
      std::snprintf(error, sizeof error, "  largest error %.3g", largest);
      text += error;
    }
    text += "\n";
  }
  if (common.json) return json_line(result);
  return text + (options.dry_run ? "nothing written (--dry-run)\n" : "written: " + out.string() + "\n");
}

void refuse_mlp(const Path& model, const std::string& command, const std::string& instead) {
  if (model_kind_of_file(model) != ModelKind::mlp) return;
  refuse_unsupported("samba " + command + " needs a stack, " + model.string() + " is an MLP: " + instead);
}

}  // namespace samba::apps
