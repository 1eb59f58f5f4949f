#include "samba/train/mlp_checkpoint.h"

#include <algorithm>
#include <cstring>

#include "samba/core/error.h"
#include "samba/core/sha256.h"
#include "samba/formats/canonical_json.h"

namespace samba {

namespace {

using nlohmann::json;

constexpr const char* kEnvelopeSchema = "mojolearn.small-mlp-checkpoint.v1";
constexpr const char* kPayloadSchema = "mojolearn.small-mlp-trainer.v1";
constexpr const char* kArithmeticProfile = "mojolearn.neural-training.fp32.v1";
constexpr const char* kFamily = "mojolearn.small-mlp";  // begins both schemas
constexpr std::size_t kMostDigits = 4300;
constexpr std::size_t kSniffedBytes = 65536;

json parameter_order() {
  json names = json::array();
  for (const MlpTensor& tensor : mlp_tensors()) names.push_back(tensor.name);
  return names;
}
json architecture() { return {kMlpFeatures, kMlpHidden, kMlpClasses}; }

// ---- writing ----

std::string hex_of(const void* data, std::size_t bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < bytes; ++i) {
    const unsigned value = static_cast<const unsigned char*>(data)[i];
    text += kDigits[value >> 4];
    text += kDigits[value & 15];
  }
  return text;
}

template <class Value>
json tensor_json(const char* dtype, const Shape& shape, std::span<const Value> values) {
  static_assert(std::endian::native == std::endian::little);
  return {{"dtype", dtype}, {"hex", hex_of(values.data(), values.size_bytes())}, {"shape", shape}};
}

json floats_json(const Shape& shape, std::span<const float> values) { return tensor_json("<f4", shape, values); }

json payload_of(const MlpState& state) {
  json weights = json::object();
  for (const MlpTensor& tensor : mlp_tensors()) {
    weights[tensor.name] = floats_json(
        tensor.shape, std::span(state.weights)
                          .subspan(static_cast<std::size_t>(tensor.offset), static_cast<std::size_t>(tensor.size)));
  }
  const OptimizerSettings& settings = state.settings;
  return {{"schema", kPayloadSchema},
          {"architecture", architecture()},
          {"numeric_mode", "identical"},
          {"parameter_order", parameter_order()},
          {"config",
           {{"lr", settings.lr},
            {"beta1", settings.beta1},
            {"beta2", settings.beta2},
            {"eps", settings.eps},
            {"weight_decay", settings.weight_decay}}},
          {"data_schedule", state.data_schedule},
          {"optimizer",
           {{"kind", "AdamW"},
            {"step", state.step},
            {"m", floats_json({kMlpParameters}, state.exp_avg)},
            {"v", floats_json({kMlpParameters}, state.exp_avg_sq)},
            {"flags", tensor_json<std::int32_t>("<i4", {4}, state.flags)}}},
          {"weights", weights}};
}

// ---- reading ----

class Parser {
 public:
  explicit Parser(MlpReader reader)
      : checkpoint_(reader == MlpReader::trainer ? "SmallMLPTrainer checkpoint " : "MLPInference checkpoint ") {}

  MlpState parse(std::string_view bytes) {
    if (bytes.size() > kMlpCheckpointBytes) {
      refuse("exceeds its size bound of " + std::to_string(kMlpCheckpointBytes) + " bytes");
    }
    const json file = parse_text(bytes);
    check_envelope(file);
    const json& payload = file["payload"];
    MlpState state;
    read_weights(payload, state);
    read_optimizer(payload, state);
    read_state(payload, state);
    return state;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const { refuse_corrupt("mlp", checkpoint_ + what); }
  [[noreturn]] static void refuse_state(const std::string& what) {
    refuse_corrupt("mlp", "SmallMLPTrainer state " + what);
  }

  json parse_text(std::string_view bytes) const {
    try {
      return parse_json(bytes, JsonReadOptions{.lone_surrogates = true, .most_digits = kMostDigits});
    } catch (const Error& error) {
      refuse(std::string("is not valid bounded JSON: ") + error.what());
    }
  }

  static bool has_keys(const json& object, const std::vector<std::string>& keys) {
    return object.is_object() && object.size() == keys.size() &&
           std::all_of(keys.begin(), keys.end(), [&](const std::string& key) { return object.contains(key); });
  }

  void check_envelope(const json& file) const {
    const bool profiled = file.is_object() && file.contains("arithmetic_profile");
    std::vector<std::string> keys = {"payload", "payload_sha256", "schema"};
    if (profiled) keys.emplace_back("arithmetic_profile");
    if (!has_keys(file, keys)) refuse("envelope mismatch: exactly payload, payload_sha256 and schema are expected");
    if (file["schema"] != kEnvelopeSchema) {
      refuse("schema mismatch: expected " + std::string(kEnvelopeSchema) + ", got " + canonical_json(file["schema"]));
    }
    if (file["payload_sha256"] != sha256_hex(canonical_json(file["payload"], ControlEscapes::short_forms))) {
      refuse("integrity mismatch: payload_sha256 is not the SHA-256 of the payload");
    }
    if (profiled && file["arithmetic_profile"] != kArithmeticProfile) {
      refuse("arithmetic profile mismatch: expected " + std::string(kArithmeticProfile) + ", got " +
             canonical_json(file["arithmetic_profile"]));
    }
  }

  static const json& member(const json& object, const char* name) {
    static const json kNothing;
    return object.is_object() && object.contains(name) ? object[name] : kNothing;
  }

  // The bytes of a tensor, `out` of them. The text may have blanks between two bytes: they count as characters.
  void read_hex(const std::string& name, const json& value, std::span<std::byte> out) const {
    std::size_t characters = 0;
    const std::string text = value.is_string() ? value.get<std::string>() : std::string();
    for (const char c : text) characters += (static_cast<unsigned char>(c) & 0xC0) != 0x80 ? 1 : 0;
    if (!value.is_string() || characters != 2 * out.size()) {
      refuse("tensor length mismatch: " + name + " needs " + std::to_string(2 * out.size()) + " hex digits");
    }
    const auto digit = [&](char c) -> unsigned {
      if (c >= '0' && c <= '9') return static_cast<unsigned>(c - '0');
      if (c >= 'a' && c <= 'f') return static_cast<unsigned>(c - 'a' + 10);
      if (c >= 'A' && c <= 'F') return static_cast<unsigned>(c - 'A' + 10);
      refuse("tensor is not hexadecimal: " + name);
    };
    std::size_t bytes = 0;
    for (std::size_t at = 0; at < text.size();) {
      if (std::string_view(" \t\n\r\f\v").find(text[at]) != std::string_view::npos) {
        ++at;
        continue;
      }
      if (at + 1 >= text.size()) refuse("tensor is not hexadecimal: " + name);
      const unsigned high = digit(text[at]);
      out[bytes++] = static_cast<std::byte>(high << 4 | digit(text[at + 1]));
      at += 2;
    }
    if (bytes != out.size()) {
      refuse("tensor byte count mismatch: " + name + " has " + std::to_string(bytes) + " of " +
             std::to_string(out.size()) + " bytes");
    }
  }

  template <class Value>
  void read_tensor(const std::string& name, const json& tensor, const char* dtype, const Shape& shape,
                   std::span<Value> out) const {
    if (!has_keys(tensor, {"dtype", "hex", "shape"}) || tensor["dtype"] != dtype || tensor["shape"] != json(shape)) {
      refuse("tensor descriptor mismatch: " + name + " must have dtype " + dtype + ", shape " + json(shape).dump() +
             " and hex");
    }
    read_hex(name, tensor["hex"], std::as_writable_bytes(out));
  }

  void read_weights(const json& payload, MlpState& state) const {
    const json& weights = member(payload, "weights");
    std::vector<std::string> names;
    for (const MlpTensor& tensor : mlp_tensors()) names.push_back(tensor.name);
    if (!has_keys(weights, names))
      refuse("parameter registry mismatch: weights must be weight1, bias1, weight2, bias2");
    state.weights.resize(static_cast<std::size_t>(kMlpParameters));
    for (const MlpTensor& tensor : mlp_tensors()) {
      read_tensor("weights/" + tensor.name, weights[tensor.name], "<f4", tensor.shape,
                  std::span(state.weights)
                      .subspan(static_cast<std::size_t>(tensor.offset), static_cast<std::size_t>(tensor.size)));
    }
  }

  void read_optimizer(const json& payload, MlpState& state) const {
    const json& optimizer = member(payload, "optimizer");
    for (const char* part : {"m", "v", "flags"}) {
      if (member(optimizer, part).is_null()) {
        refuse(std::string("state is incomplete: optimizer/") + part + " is missing");
      }
    }
    state.exp_avg.resize(static_cast<std::size_t>(kMlpParameters));
    state.exp_avg_sq.resize(static_cast<std::size_t>(kMlpParameters));
    read_tensor<float>("optimizer/m", optimizer["m"], "<f4", {kMlpParameters}, state.exp_avg);
    read_tensor<float>("optimizer/v", optimizer["v"], "<f4", {kMlpParameters}, state.exp_avg_sq);
    read_tensor<std::int32_t>("optimizer/flags", optimizer["flags"], "<i4", {4}, state.flags);
  }

  static double read_scalar(const json& config, const char* name) {
    const json& value = config[name];
    if (value.is_binary()) refuse_state(std::string(name) + " must be finite float32");
    if (!value.is_number())
      refuse_state(std::string(name) + " must be a finite float32 scalar, got " + canonical_json(value));
    return value.get<double>();
  }

  static void read_config(const json& payload, MlpState& state) {
    const json& config = payload["config"];
    if (!has_keys(config, {"lr", "beta1", "beta2", "eps", "weight_decay"})) {
      refuse_state("config has missing or unknown fields");
    }
    state.settings.lr = read_scalar(config, "lr");
    state.settings.beta1 = read_scalar(config, "beta1");
    state.settings.beta2 = read_scalar(config, "beta2");
    state.settings.eps = read_scalar(config, "eps");
    state.settings.weight_decay = read_scalar(config, "weight_decay");
  }

  static Index read_step(const json& step) {
    if (!step.is_number_integer() && !step.is_binary()) {
      refuse_state("step must be an integer, got " + canonical_json(step));
    }
    const bool small = step.is_number_integer() && (!step.is_number_unsigned() || step <= kMlpMostSteps);
    if (!small) refuse_state("step is outside its supported range [0, 2^31)");
    return step.get<Index>();
  }

  static void read_state(const json& payload, MlpState& state) {
    if (!has_keys(payload, {"schema", "architecture", "numeric_mode", "parameter_order", "config", "data_schedule",
                            "optimizer", "weights"})) {
      refuse_state("has missing or unknown fields");
    }
    if (payload["schema"] != kPayloadSchema || payload["architecture"] != architecture() ||
        payload["numeric_mode"] != "identical" || payload["parameter_order"] != parameter_order()) {
      refuse_state("schema/architecture/mode/order mismatch");
    }
    const json& optimizer = payload["optimizer"];
    if (!has_keys(optimizer, {"kind", "step", "m", "v", "flags"}) || optimizer["kind"] != "AdamW") {
      refuse_state("optimizer mismatch: kind AdamW with step, m, v and flags is expected");
    }
    read_config(payload, state);
    state.step = read_step(optimizer["step"]);
    state.data_schedule = payload["data_schedule"];
    try {
      check_mlp_state(state);
      state.settings = rounded_mlp_settings(state.settings);
    } catch (const Error& error) {
      refuse_state(error.what());
    }
  }

  std::string checkpoint_;
};

// The content, or its first bytes where it is longer than a checkpoint can be.
std::string read_bounded(const Path& path, std::size_t most) {
  FileReader file(path);
  std::string content(static_cast<std::size_t>(std::min<std::uint64_t>(file.size(), most)), '\0');
  content.resize(file.read(content.data(), content.size()));
  return content;
}

}  // namespace

std::string mlp_checkpoint_bytes(const MlpState& state) {
  check_mlp_state(state);
  const json payload = payload_of(state);
  const std::string digest = sha256_hex(canonical_json(payload, ControlEscapes::short_forms));
  const json file = {{"payload", payload}, {"payload_sha256", digest}, {"schema", kEnvelopeSchema}};
  return canonical_json(file, ControlEscapes::short_forms) + "\n";
}

MlpState parse_mlp_checkpoint(std::string_view bytes, MlpReader reader) { return Parser(reader).parse(bytes); }

std::string save_mlp_checkpoint(const MlpState& state, const Path& path) {
  const std::string bytes = mlp_checkpoint_bytes(state);
  write_file_atomically(path, bytes, 0600);
  return sha256_hex(bytes);
}

MlpState read_mlp_checkpoint(const Path& path, MlpReader reader) {
  const std::string bytes = read_bounded(path, kMlpCheckpointBytes + 1);
  try {
    return parse_mlp_checkpoint(bytes, reader);
  } catch (const Error& error) {
    throw Error(error.kind(), error.error_class(), std::string(error.what()) + " (" + path.string() + ")");
  }
}

std::unique_ptr<MlpTrainer> load_mlp_for_training(Executor& executor, const Path& path) {
  return std::make_unique<MlpTrainer>(executor, read_mlp_checkpoint(path, MlpReader::trainer));
}

std::unique_ptr<MlpInference> load_mlp_for_inference(Executor& executor, const Path& path) {
  const MlpState state = read_mlp_checkpoint(path, MlpReader::inference);
  return std::make_unique<MlpInference>(executor, mlp_arrays(state.weights));
}

bool is_mlp_checkpoint(const Path& path) {
  const std::string start = read_bounded(path, kSniffedBytes);
  const std::size_t first = start.find_first_not_of(" \t\r\n");
  return first != std::string::npos && start[first] == '{' && start.find(kFamily) != std::string::npos;
}

}  // namespace samba
