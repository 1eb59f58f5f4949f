// Configurations, records and tables: JSON and lines of text.
#include "fuzz/readers.h"
#include "samba/convert/huggingface_config.h"
#include "samba/convert/mamba_ssm_config.h"
#include "samba/core/json_fields.h"
#include "samba/formats/canonical_json.h"
#include "samba/model/registry.h"
#include "samba/model/stack_config.h"
#include "samba/train/data.h"
#include "samba/train/mlp_data.h"
#include "samba/train/mlp_run.h"
#include "samba/train/run_charts.h"
#include "samba/train/train_config.h"
#include "samba/verify/case_file.h"
#include "samba/verify/compare_files.h"
#include "samba/verify/model_record.h"

namespace samba::fuzz {

namespace {

nlohmann::json json_of(Bytes input) { return parse_json(std::string(text_of(input)), "input"); }

}  // namespace

void read_strict_json(Bytes input) {
  const std::string written = canonical_json(parse_json(text_of(input)));
  expect(canonical_json(parse_json(written)) == written, "canonical JSON reads back as itself");
}

void read_train_config(Bytes input) {
  const nlohmann::json json = json_of(input);
  accepts([&] { parse_mlp_train_config(json, "/"); });
  const nlohmann::json resolved = resolved_json(parse_train_config(json, "/"));
  expect(nlohmann::json(resolved_json(parse_train_config(resolved, "/"))) == resolved,
         "a resolved configuration gives itself");
}

// The model alone, as `samba inspect` plans for it.
void read_stack_config(Bytes input) {
  const StackConfig config = stack_config_from_json(json_of(input));
  expect(stack_config_from_json(config_to_json(config)) == config, "a configuration that is written reads back");
  Registry(config).total();
  position_limit(config);
  inference_only_reason(config);
}

void read_foreign_config(Bytes input) {
  const nlohmann::json json = json_of(input);
  if (is_mamba_ssm_config(json)) parse_mamba_ssm_config(json, "input");
  const HuggingFaceConfig config = parse_huggingface_config(json, "input");
  std::string why;
  const auto written = huggingface_config(config.type, config.stack, "float32", why);
  if (!written) return;
  const std::string difference =
      first_config_difference(parse_huggingface_config(*written, "written").stack, config.stack);
  expect(difference.empty(), "a configuration that is written is the one that was read");
}

void read_csv_rows(Bytes input) {
  const std::string text(text_of(input));
  accepts([&] { parse_mlp_rows(text, "input", ClassColumn::optional); });
  accepts([&] { start_positions_order(file_with(input), 2, 100, 3); });
}

void read_metrics(Bytes input) {
  const Path path = file_with(input, "metrics.jsonl");
  accepts([&] { loss_svg(samba::read_metrics(path)); });
  verify::compare_metrics(path, path);
}

// The first byte: whether it is a file of cases with tensors or JSON alone.
void read_case_file(Bytes input) {
  if (input.empty()) return;
  const bool tensors = (static_cast<unsigned>(input[0]) & 1U) == 0;
  verify::CaseLoader loader;
  loader.load(file_with(input.subspan(1), tensors ? "case.safetensors" : "case.json"));
}

void read_record(Bytes input) {
  const nlohmann::json record = json_of(input);
  const verify::RecordRequest request = verify::request_of(record);
  expect(request.decode >= 0, "no fewer than no tokens are decoded");
  const verify::RecordComparison comparison = verify::compare_records(record, record);
  expect(comparison.different == 0, "a record equals itself");
}

}  // namespace samba::fuzz
