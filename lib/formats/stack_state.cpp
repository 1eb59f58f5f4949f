// The rules of the state of a samba.stack.v1 file that do not need its configuration.

#include <algorithm>
#include <set>

#include "samba/formats/canonical_json.h"
#include "samba/formats/stack_archive.h"

namespace samba {

namespace {

using Json = nlohmann::json;

constexpr const char* kStateKeys[] = {"config",   "numeric_mode", "optimizer", "profile",      "rng",
                                      "schedule", "schema",       "step",      "weight_format"};

constexpr const char* kSecondProfile = "samba.fp32.v2";  // then the configuration says so too

std::string shown(const Json& value) {
  std::string text = value.is_binary() ? "an integer beyond 64 bits" : value.dump(-1, ' ', true);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return text;
}

bool is_one_of(const Json& value, std::initializer_list<const char*> accepted) {
  return std::any_of(accepted.begin(), accepted.end(), [&](const char* word) { return value == word; });
}

bool is_object_or_null(const Json& value) { return value.is_null() || value.is_object(); }

StackStateFault find_schema_fault(const Json& state) {
  if (!state.is_object()) return {"state_schema", "the state must be an object"};
  if (!state.contains("schema") || state["schema"] != kStackStateSchema) {
    return {"state_schema", "the schema of the state must be \"" + std::string(kStackStateSchema) + "\", got " +
                                (state.contains("schema") ? shown(state["schema"]) : "nothing")};
  }
  if (!state.contains("profile") || !is_one_of(state["profile"], {kStackProfile, kSecondProfile})) {
    return {"profile", "it has the profile " + (state.contains("profile") ? shown(state["profile"]) : "(none)") +
                           ", this program computes \"" + kStackProfile + "\" and \"" + kSecondProfile +
                           "\"; a file keeps the arithmetic it was made with: build the model from its weights "
                           "(samba convert IN OUT --to safetensors, with the version that wrote it)"};
  }
  for (const char* key : kStateKeys) {
    if (!state.contains(key)) return {"state_schema", std::string("the state has no key ") + key};
  }
  if (state.size() != std::size(kStateKeys)) {
    for (const auto& [key, value] : state.items()) {
      if (std::find(std::begin(kStateKeys), std::end(kStateKeys), key) == std::end(kStateKeys)) {
        return {"state_schema", "the state has the unknown key " + canonical_json(key)};
      }
    }
  }
  return {};
}

// The packed format of the parameters; the fault when they mix two.
StackStateFault find_format_fault(const Json& state, std::span<const DType> formats) {
  std::set<DType> packed(formats.begin(), formats.end());
  packed.erase(DType::float32);
  if (packed.size() > 1) return {"metadata", "the weights mix formats: bfloat16 and int8"};
  const std::string_view format = packed.empty() ? "float32" : dtype_name(*packed.begin());
  if (state["weight_format"] != format) {
    return {"metadata",
            "weight_format is " + shown(state["weight_format"]) + ", the parameters are " + std::string(format)};
  }
  return {};
}

}  // namespace

StackStateFault find_stack_state_fault(const Json& state, std::span<const DType> formats, bool moments) {
  if (StackStateFault fault = find_schema_fault(state); !fault.error_class.empty()) return fault;
  const auto metadata = [](const std::string& reason) { return StackStateFault{"metadata", reason}; };
  if (!state["config"].is_object()) return metadata("config must be an object, got " + shown(state["config"]));
  const bool second = state["config"].contains("profile") && state["config"]["profile"] == kSecondProfile;
  if ((state["profile"] == kSecondProfile) != second) {
    return metadata("the profile is " + shown(state["profile"]) + ", the configuration is" + (second ? "" : " not") +
                    " of samba.fp32.v2");
  }
  if (!is_one_of(state["numeric_mode"], {"identical", "deterministic", "fast"})) {
    return metadata("numeric_mode must be identical, deterministic or fast, got " + shown(state["numeric_mode"]));
  }
  const Json& step = state["step"];
  if (!is_integer(step) || step < 0 || (step.is_number_unsigned() && step.get<std::uint64_t>() >= INT64_MAX)) {
    return metadata("step must be an integer, at least 0, got " + shown(step));
  }
  for (const char* key : {"optimizer", "schedule", "rng"}) {
    if (!is_object_or_null(state[key])) {
      return metadata(std::string(key) + " must be null or an object, got " + shown(state[key]));
    }
  }
  for (const char* key : {"optimizer", "rng"}) {
    if (state[key].is_object() != moments) {
      return metadata(moments ? std::string(key) + " must be an object in a file with moments"
                              : std::string(key) + " must be null in a file without moments");
    }
  }
  if (!moments && !state["schedule"].is_null()) return metadata("schedule must be null in a file without moments");
  if (StackStateFault fault = find_format_fault(state, formats); !fault.error_class.empty()) return fault;
  if (moments && state["weight_format"] != "float32") return metadata("packed weights have no moments");
  return {};
}

}  // namespace samba
