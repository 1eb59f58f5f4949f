#include "samba/train/step_batch.h"

#include <cmath>

#include "samba/core/error.h"
#include "samba/core/json_limits.h"
#include "samba/numerics/float32.h"

namespace samba {

nlohmann::ordered_json to_json(const StepBatch& batch) {
  nlohmann::ordered_json json = {
      {"format", kBatchFormat}, {"step", batch.step}, {"reason", batch.reason}, {"message", batch.message}};
  json["loss_bits"] = batch.loss_bits.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(batch.loss_bits);
  json["card"] = batch.card;
  json["data"] = batch.data;
  return json;
}

StepBatch read_step_batch(const Path& file) {
  std::string fault;
  const std::string text = read_file(file);
  const nlohmann::json json = parse_bounded(text, fault);
  const auto refuse = [&](const std::string& why) {
    refuse_corrupt("batch", file.string() + " is no file of a step's batch (" + kBatchFormat + "): " + why);
  };
  if (json.is_discarded()) refuse(fault);
  if (!json.is_object() || json.value("format", nlohmann::json()) != kBatchFormat) refuse("it has another format");
  const auto text_of = [&](const char* name) {
    const auto found = json.find(name);
    if (found == json.end() || !found->is_string()) refuse(std::string("it has no text ") + name);
    return found->get<std::string>();
  };
  StepBatch batch;
  const auto step = json.find("step");
  if (step == json.end() || !step->is_number_integer() || *step < 1 || *step > Index{1} << 40) {
    refuse("it has no step");
  }
  batch.step = step->get<Index>();
  batch.reason = text_of("reason");
  batch.message = text_of("message");
  batch.card = text_of("card");
  if (batch.reason != kLossSpike && batch.reason != kNonFinite) refuse("its reason is " + batch.reason);
  if (json.contains("loss_bits") && json["loss_bits"].is_string()) batch.loss_bits = json["loss_bits"];
  if (!json.contains("data") || !json["data"].is_object()) refuse("it has no data");
  batch.data = nlohmann::ordered_json(json["data"]);
  return batch;
}

BatchFigures::Tensor gradient_figures(const std::string& name, std::span<const float> gradient) {
  BatchFigures::Tensor figures{name};
  double squares = 0.0;
  for (const float value : gradient) {
    if (is_finite(value)) {
      squares += static_cast<double>(value) * static_cast<double>(value);
    } else {
      ++figures.non_finite;
    }
  }
  figures.norm = std::sqrt(squares);
  return figures;
}

}  // namespace samba
