#include "samba/verify/compare_files.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "samba/convert/model_source.h"
#include "samba/core/error.h"
#include "samba/core/json_fields.h"
#include "samba/core/json_limits.h"
#include "samba/core/streams.h"
#include "samba/train/mlp_checkpoint.h"
#include "samba/train/model_kind.h"
#include "samba/train/run_folder.h"
#include "samba/train/train_config.h"
#include "samba/verify/compare.h"

namespace samba::verify {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::size_t kLinesShown = 6;

// ---- models ----

// What is compared of a model. Tensors of a stack stay in the files until their turn comes.
struct ModelParts {
  std::map<std::string, std::string> facts;  // "step", "configuration", "optimizer" -> text
  OpenModel model;
  ArrayMap arrays;  // of an MLP, what its tensors see

  // In the order of computation, moments last.
  std::vector<const ModelTensor*> tensors() const {
    std::vector<const ModelTensor*> all;
    for (const auto* list : {&model.tensors, &model.moments}) {
      for (const ModelTensor& tensor : *list) all.push_back(&tensor);
    }
    return all;
  }
};

// A tensor as files of samba hold it: one array, or the parts of a packed one.
class HeldArrays {
 public:
  explicit HeldArrays(const ModelTensor& tensor) : tensor_(tensor) {
    const bool blocks = tensor.view && tensor.view->is_packed() && tensor.view->packed().blocks != nullptr;
    const bool lies_ready = tensor.view && !blocks;
    if (!lies_ready) loaded_ = tensor.load();
    arrays_ = stored_arrays({{tensor.name, lies_ready ? *tensor.view : loaded_.view()}});
  }
  ~HeldArrays() {
    if (tensor_.drop) tensor_.drop();
  }
  HeldArrays(const HeldArrays&) = delete;
  HeldArrays& operator=(const HeldArrays&) = delete;

  const auto& arrays() const { return arrays_; }

 private:
  const ModelTensor& tensor_;
  Weight loaded_;
  decltype(stored_arrays({})) arrays_;
};

OpenModel open_all(const ModelPlace& place) {
  try {
    return open_model(place, Reading::everything);
  } catch (const Error& error) {
    if (error.error_class() != "inference_only") throw;
    return open_model(place, Reading::inference);
  }
}

ModelParts stack_parts(const ModelPlace& place) {
  ModelParts parts;
  parts.model = open_all(place);
  const OpenModel& model = parts.model;
  parts.facts["step"] = std::to_string(model.state.step);
  parts.facts["configuration"] = config_to_json(model.state.config).dump();
  parts.facts["numeric mode"] = model.state.numeric_mode;
  parts.facts["training state"] = model.state.training ? "held" : "not held";
  for (const char* field : {"optimizer", "schedule", "rng"}) {
    if (model.description.contains(field)) parts.facts[field] = model.description[field].dump();
  }
  return parts;
}

ModelParts mlp_parts(const Path& path) {
  const MlpState state = read_mlp_checkpoint(path);
  ModelParts parts;
  parts.facts["step"] = std::to_string(state.step);
  parts.facts["data schedule"] = state.data_schedule.dump();
  const std::pair<const char*, const std::vector<float>*> arrays[] = {
      {"", &state.weights}, {"exp_avg.", &state.exp_avg}, {"exp_avg_sq.", &state.exp_avg_sq}};
  for (const auto& [prefix, values] : arrays) {
    for (auto& [name, array] : mlp_arrays(*values)) {
      const Array& kept = parts.arrays[prefix + name] = std::move(array);
      ModelTensor& tensor = parts.model.tensors.emplace_back();
      tensor.name = prefix + name;
      tensor.view = ConstWeight(kept);
    }
  }
  return parts;
}

ModelParts parts_of(const Path& given) {
  const ModelPlace place = find_model(given);
  return model_kind_of_file(place.path) == ModelKind::mlp ? mlp_parts(place.path) : stack_parts(place);
}

void compare_facts(const ModelParts& left, const ModelParts& right, FileComparison& comparison) {
  std::set<std::string> facts;
  for (const auto* parts : {&left, &right}) {
    for (const auto& [name, text] : parts->facts) facts.insert(name);
  }
  for (const std::string& name : facts) {
    const auto in_a = left.facts.find(name), in_b = right.facts.find(name);
    const std::string text_a = in_a == left.facts.end() ? "absent" : in_a->second;
    const std::string text_b = in_b == right.facts.end() ? "absent" : in_b->second;
    ++comparison.compared;
    if (text_a != text_b) comparison.differ(name + ": " + text_a + " and " + text_b);
  }
}

// ---- metrics ----

// "step 12" or "evaluation at step 12" -> the line.
using Lines = std::vector<std::pair<std::string, json>>;

Lines read_lines(const Path& path) {
  Lines lines;
  Index number = 0;
  for (const std::string& text : lines_of(read_file(path))) {
    ++number;
    if (text.empty()) continue;
    json line = parse_bounded(text);
    if (!line.is_object() || !line.contains("step")) {
      refuse_corrupt("metrics", path.string() + ": line " + std::to_string(number) + " is no object with a step");
    }
    const std::string kind = line.contains("eval_loss") ? "evaluation at step " : "step ";
    lines.emplace_back(kind + line["step"].dump(), std::move(line));
  }
  return lines;
}

bool is_metrics(const Path& path) { return fs::is_regular_file(path) && path.extension() == ".jsonl"; }
bool is_run(const Path& path) {
  return fs::is_directory(path) && fs::exists(path / "metrics.jsonl") && fs::exists(path / "latest");
}

// ---- runs ----

std::map<std::string, std::string> sidecar_digests(const Path& run) {
  std::map<std::string, std::string> digests;  // "step-00000020" -> SHA-256
  if (!fs::is_directory(run / "checkpoints")) return digests;
  for (const auto& entry : fs::directory_iterator(run / "checkpoints")) {
    if (entry.path().extension() != ".json") continue;
    const json beside = parse_bounded(read_file(entry.path(), 1 << 20));
    if (beside.is_object() && beside.value("sha256", json()).is_string())
      digests[entry.path().stem()] = beside["sha256"];
  }
  return digests;
}

Path archive_of(const Path& run, const std::string& name) {
  const Path samba = run / "checkpoints" / (name + ".samba");
  return fs::exists(samba) ? samba : run / "checkpoints" / (name + ".mlp");
}

}  // namespace

std::vector<std::string> computed_fields(const nlohmann::json& line) {
  // The card follows from the others, so it comes last.
  std::vector<std::string> fields = {"loss_bits", "loss", "total_norm_bits", "total_norm", "lr_bits", "lr"};
  for (const auto& [name, value] : line.items()) {
    const bool listed = std::find(fields.begin(), fields.end(), name) != fields.end();
    if (!listed && name != "seconds" && name != "card") fields.push_back(name);
  }
  fields.emplace_back("card");
  std::erase_if(fields, [&](const std::string& name) { return !line.contains(name); });
  return fields;
}

void FileComparison::differ(const std::string& line) {
  if (first.empty()) first = line;
  ++different;
  if (shown == kLinesShown) lines.emplace_back("and more");
  if (shown++ < kLinesShown) lines.push_back(line);
}

void FileComparison::add(const FileComparison& part) {
  if (first.empty()) first = part.first;
  for (const std::string& line : part.lines) lines.push_back(line);
  compared += part.compared;
  different += part.different;
}

FileComparison compare_models(const Path& a, const Path& b) {
  const ModelParts left = parts_of(a), right = parts_of(b);
  FileComparison comparison;
  comparison.what = "models";
  compare_facts(left, right, comparison);
  std::map<std::string, const ModelTensor*> others;
  for (const ModelTensor* tensor : right.tensors()) others[tensor->name] = tensor;
  std::set<std::string> only_b;
  std::size_t equal = 0, all = 0;
  for (const ModelTensor* tensor : left.tensors()) {
    const HeldArrays held(*tensor);
    std::optional<HeldArrays> other;
    if (const auto found = others.find(tensor->name); found != others.end()) {
      other.emplace(*found->second);
      others.erase(found);
    }
    std::map<std::string, ConstArray> there;
    if (other) there = {other->arrays().begin(), other->arrays().end()};
    for (const auto& [name, array] : held.arrays()) {
      ++all;
      const auto match = there.find(name);
      if (match == there.end()) {
        comparison.differ("tensor " + name + ": only in " + a.string());
        continue;
      }
      ++comparison.compared;
      if (const auto difference = first_difference(name, match->second, array)) {
        comparison.differ("tensor " + name + " " + difference->detail + " (got: " + b.string() + ")");
      } else {
        ++equal;
      }
      there.erase(match);
    }
    for (const auto& [name, array] : there) only_b.insert(name);
  }
  for (const auto& [tensor_name, tensor] : others) {
    const HeldArrays held(*tensor);
    for (const auto& [name, array] : held.arrays()) only_b.insert(name);
  }
  for (const std::string& name : only_b) comparison.differ("tensor " + name + ": only in " + b.string());
  comparison.lines.push_back(std::to_string(equal) + " of " + std::to_string(all) + " tensors are equal");
  return comparison;
}

FileComparison compare_metrics(const Path& a, const Path& b) {
  const Lines left = read_lines(a), right = read_lines(b);
  FileComparison comparison;
  comparison.what = "metrics";
  std::map<std::string, const json*> others;
  for (const auto& [name, line] : right) others[name] = &line;
  std::size_t both = 0, steps_that_differ = 0, only_a = 0;
  std::string name_only_a;
  for (const auto& [name, line] : left) {
    const auto other = others.find(name);
    if (other == others.end()) {
      if (only_a++ == 0) name_only_a = name;
      continue;
    }
    ++both;
    bool differs = false;
    for (const std::string& field : computed_fields(line)) {
      // What only one of them holds (a digest that was not asked for) is no difference of the runs.
      if (!other->second->contains(field)) continue;
      ++comparison.compared;
      const json& here = line[field];
      const json& there = (*other->second)[field];
      if (here == there) continue;
      comparison.differ(name + ": " + field + " is " + here.dump() + " and " + there.dump());
      differs = true;
    }
    steps_that_differ += differs ? 1 : 0;
    others.erase(other);
  }
  if (only_a > 0) {
    comparison.differ(std::to_string(only_a) + " lines only in " + a.string() + ", the first is " + name_only_a);
  }
  if (!others.empty()) {
    const auto first =
        std::find_if(right.begin(), right.end(), [&](const auto& entry) { return others.contains(entry.first); });
    comparison.differ(std::to_string(others.size()) + " lines only in " + b.string() + ", the first is " +
                      first->first);
  }
  comparison.lines.push_back(std::to_string(both - steps_that_differ) + " of " + std::to_string(both) +
                             " lines that both have are equal");
  return comparison;
}

FileComparison compare_runs(const Path& a, const Path& b) {
  FileComparison comparison;
  comparison.what = "runs";
  const json config_a = parse_json(read_file(a / "config.json"), (a / "config.json").string());
  const json config_b = parse_json(read_file(b / "config.json"), (b / "config.json").string());
  const std::string field = samba::first_difference(config_a, config_b);
  ++comparison.compared;
  if (!field.empty()) comparison.differ("config.json: " + field + " differs");
  comparison.add(compare_metrics(a / "metrics.jsonl", b / "metrics.jsonl"));
  const auto left = sidecar_digests(a), right = sidecar_digests(b);
  std::size_t equal = 0, both = 0;
  for (const auto& [name, digest] : left) {
    const auto other = right.find(name);
    if (other == right.end()) continue;
    ++both;
    ++comparison.compared;
    if (digest == other->second) {
      ++equal;
      continue;
    }
    const FileComparison models = compare_models(archive_of(a, name), archive_of(b, name));
    comparison.differ("checkpoint " + name + ": " + (models.equal() ? "other bytes, equal tensors" : models.first));
  }
  comparison.lines.push_back(std::to_string(equal) + " of " + std::to_string(both) +
                             " checkpoints that both have are equal");
  return comparison;
}

FileComparison compare_paths(const Path& a, const Path& b) {
  for (const Path& path : {a, b}) {
    if (!fs::exists(path)) refuse_value("there is no " + path.string());
  }
  if (is_metrics(a) && is_metrics(b)) return compare_metrics(a, b);
  if (is_run(a) && is_run(b)) return compare_runs(a, b);
  if (is_metrics(a) || is_metrics(b)) {
    refuse_value("--compare takes two things of one kind: two models, two metrics files, or two run folders; " +
                 (is_metrics(a) ? b : a).string() + " is no metrics file");
  }
  return compare_models(a, b);
}

nlohmann::json comparison_json(const FileComparison& comparison) {
  return {
      {"what", comparison.what},           {"equal", comparison.equal()},          {"compared", comparison.compared},
      {"different", comparison.different}, {"first_difference", comparison.first}, {"lines", comparison.lines}};
}

}  // namespace samba::verify
