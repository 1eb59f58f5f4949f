// A suite of the user's own: what a model computed for a prompt, on one machine, to be computed again elsewhere.
//
// The record is JSON, "samba.record/1": the prompt's ids, and of the embedding, every layer, the final norm, the
// logits, every piece of the decode state and every greedily decoded token the digest and some values. The first of
// them that differs is where two machines part.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "samba/model/samba_stack.h"
#include "samba/verify/compare.h"

namespace samba::verify {

inline constexpr const char* kRecordSchema = "samba.record/1";

struct RecordRequest {
  std::vector<std::vector<std::int32_t>> prompts;
  Index decode = 16;  // tokens decoded greedily behind each prompt
};

// {"weights", "profile", "prompts": [{"ids", "tokens", "results": [...]}]}
nlohmann::json record_model(SambaStack& stack, const RecordRequest& request);

// The request that gave a record. Error(corrupt): no record.
RecordRequest request_of(const nlohmann::json& record);

struct RecordComparison {
  std::size_t equal = 0, different = 0;
  std::vector<std::string> lines;  // of the results that differ, in the order of computation
  bool passed() const { return different == 0 && equal > 0; }
};
RecordComparison compare_records(const nlohmann::json& got, const nlohmann::json& want);

// The digest of all weights by name, in the form the stack holds them.
std::string weights_sha256(const SambaStack& stack);

}  // namespace samba::verify
