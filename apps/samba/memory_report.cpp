#include "memory_report.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "samba/core/resident.h"

namespace samba::apps {

namespace {

constexpr const char* kParts[] = {"weights",   "panels",  "moments",   "gradients", "states",
                                  "workspace", "program", "tokenizer", "total"};

std::string row_of_bytes(const nlohmann::ordered_json& memory, const char* part) {
  char line[96];
  std::string text;
  std::snprintf(line, sizeof line, "  %-10s", part);
  text += line;
  for (const char* use : {"inference", "training"}) {
    if (memory[use].is_null()) continue;
    std::snprintf(line, sizeof line, " %14s", mebibytes(memory[use][part].get<std::uint64_t>()).c_str());
    text += line;
  }
  return text + "\n";
}

}  // namespace

nlohmann::ordered_json plan_json(const MemoryPlan& plan, const AroundModel& around) {
  return {{"weights", plan.weights},
          {"panels", plan.panels},
          {"moments", plan.moments},
          {"gradients", plan.gradients},
          {"states", plan.states},
          {"workspace", plan.workspace},
          {"program", around.program},
          {"tokenizer", around.tokenizer},
          {"total", plan.total() + around.program + around.tokenizer}};
}

nlohmann::ordered_json memory_json(Executor& executor, const StackConfig& config, std::vector<WeightFormat> formats,
                                   const TrainingCall& training, const MemoryFlags& flags, const AroundModel& around) {
  const bool packed =
      std::any_of(formats.begin(), formats.end(), [](WeightFormat format) { return format != WeightFormat::float32; });
  InferenceCall call;
  call.formats = std::move(formats);
  if (flags.batch > 0) call.batch = flags.batch;
  if (flags.length > 0) call.positions = flags.length;
  call.positions = std::min(call.positions, position_limit(config));
  auto memory = nlohmann::ordered_json::object();
  memory["inference"] = plan_json(plan_inference(executor, config, call), around);
  memory["inference"]["batch"] = call.batch;
  memory["inference"]["positions"] = call.positions;
  memory["training"] = nullptr;
  if (packed || inference_only_reason(config)) return memory;
  const Index batch = flags.batch > 0 ? flags.batch : training.batch.rows;
  const Index length = std::min(flags.length > 0 ? flags.length : training.batch.length, position_limit(config));
  memory["training"] =
      plan_json(plan_training(executor, config, training.optimizer, batch, length, training.activation_budget), around);
  memory["training"]["batch"] = batch;
  memory["training"]["length"] = length;
  return memory;
}

std::string memory_table(const nlohmann::ordered_json& memory) {
  const bool trains = !memory["training"].is_null();
  std::string text = "memory:          inference" + std::string(trains ? "       training" : "") + "\n";
  for (const char* part : kParts) text += row_of_bytes(memory, part);
  const auto& inference = memory["inference"];
  if (!inference.contains("batch")) return text;
  text += "  inference: " + inference["batch"].dump() + " row(s) of up to " + inference["positions"].dump() + " tokens";
  if (trains) {
    const auto& training = memory["training"];
    text += "; training: steps of " + training["batch"].dump() + " rows of " + training["length"].dump() + " tokens";
  }
  return text + "\n";
}

}  // namespace samba::apps
