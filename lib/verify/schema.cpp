#include "samba/verify/schema.h"

#include <map>
#include <set>
#include <vector>

#include "samba/core/error.h"

namespace samba::verify {
namespace {

using nlohmann::json;

using KeyTable = std::map<std::string, std::string, std::less<>>;  // kind or op -> its keys

[[noreturn]] void refuse(const std::string& where, const std::string& what) {
  refuse_corrupt("case", where + ": " + what);
}

const std::string& keys_of(const KeyTable& table, const std::string& name, const std::string& what,
                           const std::string& where) {
  const auto found = table.find(name);
  if (found == table.end()) {
    std::string known;
    for (const auto& [key, unused] : table) known += (known.empty() ? "" : ", ") + key;
    refuse(where, "unknown " + what + " '" + name + "'; known are " + known);
  }
  return found->second;
}

std::string text_of(const json& object, const char* key, const std::string& where) {
  if (!object.is_object() || !object.contains(key) || !object[key].is_string()) {
    refuse(where, std::string("needs '") + key + "', a text");
  }
  return object[key];
}

const std::string kEnvelope = "schema id kind reference note needs drawn? ";
const std::string kRefusal = "kind names class?";
const std::string kConfig =
    "vocab d_model layers n_heads? n_kv_heads? head_dim? intermediate? tie_embeddings? norm_eps? dropout?";
const std::string kStepRecord =
    "t loss loss_bits lr_bits total_norm_bits params_sha256 exp_avg_sha256 exp_avg_sq_sha256 rng_counter";
const std::string kTrainOptions = "seed optimizer schedule max_norm accumulation_steps";
const std::string kSchedule = "kind peak_lr min_lr warmup_steps total_steps";

// Beside the envelope.
const KeyTable kCases = {
    {"weights", ""},
    {"block", "block dims? options weight_format calls weight_edits? tensors? expect_refusal? reference_accepts?"},
    {"math_unary", "functions"},
    {"math_binary", "functions"},
    {"gemm", "dims options"},
    {"linear", "dims"},
    {"rms_norm", "dims options"},
    {"layer_norm_block", "dims options"},
    {"layer_norm_functional", "dims options"},
    {"embedding", "dims"},
    {"accumulate", "dims"},
    {"accumulation_is_aligned", "dims"},
    {"generator", "options calls expect"},
    {"cross_entropy", "dims options"},
    {"clip_grad_norm", "dims options"},
    {"chunked_lm_head_loss", "dims"},
    {"optimizer", "dims options params steps expect"},
    {"schedules", "schedules"},
    {"init", "stacks"},
    {"stack_train", "config dims options registry steps expect stage_rows?"},
    {"stack_refusal", "config options calls expect_refusal? reference_accepts? reference_changes_state?"},
    {"stack_forward", "config dims weight_format packed ids logits"},
    {"tutorial", "config dims options text start_positions steps prompt expect"},
    {"checkpoint_variants", "config ids targets variants"},
    {"lowbit_pack", "dims"},
    {"lowbit_expand", "dims"},
    {"mlp_logits", "dims weight_format x logits"},
    {"mlp_train", "dims options steps checkpoint"},
    {"mlp_checkpoint_variants", "x logits variants"},
};

const KeyTable kOptions = {
    {"gemm", "layout"},
    {"rms_norm", "eps"},
    {"layer_norm_block", "eps weight bias"},
    {"layer_norm_functional", "eps weight bias"},
    {"generator", "seed"},
    {"cross_entropy", "reduction label_smoothing num_items ignore_index"},
    {"clip_grad_norm", "max_norm"},
    {"optimizer",
     "algorithm lr max_norm maximize? beta1? beta2? eps? weight_decay? momentum? dampening? nesterov? schedule?"},
    {"stack_train", kTrainOptions + " weights_are_generator_init"},
    {"stack_refusal", "seed accumulation_steps max_norm"},
    {"tutorial", kTrainOptions},
    {"mlp_train", "lr beta1 beta2 eps weight_decay data_schedule_json"},
};

const KeyTable kExpect = {
    {"generator", "state_before_next_stream"},
    {"optimizer", "buf_initialized"},
    {"stack_train",
     "start logits eval_loss_bits? target_count ragged? decode microbatch_loss_bits checkpoint? final_checkpoint "
     "final?"},
    {"tutorial", "start final_checkpoint greedy_tokens greedy_logits"},
};

const std::string kCallKeys = "op expect? stages? expect_refusal? ";

const KeyTable kBlockCalls = {
    {"forward", "x y? state? session? lengths?"},
    {"step", "x y? state? session?"},
    {"steps", "x y? state session?"},
    {"state", "state batch_size max_tokens? set?"},
    {"set_state", "state set"},
    {"set_input_states", "state theta h k v"},
    {"set_weight", "name value"},
    {"open", "state"},
    {"sync", "state"},
    {"load", "state"},
    {"close", "state"},
    {"discard", "state"},
    {"backward", "x grad_output grads?"},
    {"tape", "x grad_output y? grads? variants?"},
    {"tape_forward", "tape x y? activation_budget_bytes? minimum_replay_ops_per_byte?"},
    {"tape_backward", "tape grad_output grads?"},
    {"tape_close", "tape"},
};

const KeyTable kStackCalls = {
    {"state", "state batch_size max_tokens"},
    {"forward", "ids state? lengths?"},
    {"step", "ids state?"},
    {"loss", "ids targets"},
    {"loss_and_grads", "ids targets num_items?"},
    {"train_step", "ids targets"},
    {"load_weights", "edits"},
};

const KeyTable kGeneratorCalls = [] {
  KeyTable table;
  for (const char* draw :
       {"uniform", "normal", "kaiming_uniform", "kaiming_normal", "xavier_uniform", "xavier_normal"}) {
    table[draw] = "shape options";
  }
  table["dropout"] = "x options";
  table["dropout_backward"] = "grad_output options";
  table["residual_dropout"] = "x residual options";
  table["residual_dropout_backward"] = "grad_output options";
  table["next_stream"] = "";
  return table;
}();

const KeyTable kHashCases = {
    {"block", "id kind block dims options weight_format note seed draws calls needs results"},
    {"samba_train", "id kind config dims options note ids n_steps save_after greedy needs expect steps results"},
    {"samba_infer", "id kind config dims weight_format note seed draws? ids calls needs expect results"},
};

const KeyTable kHashCalls = {
    {"forward", "op x y positions? state? session? lengths? same_as? expect?"},
    {"steps", "op x y positions? state session? same_as? expect?"},
    {"state", "op state batch_size max_tokens? set?"},
    {"set_input_states", "op state theta h k v"},
    {"open", "op state"},
    {"close", "op state expect?"},
    {"backward", "op x grad_output grads"},
};

const KeyTable kInferCalls = {
    {"forward", "op y positions? state? lengths? same_as? expect?"},
    {"steps", "op y positions? state same_as? expect?"},
    {"state", "op state batch_size max_tokens"},
    {"greedy", "op prompt tokens y"},
};

const std::string kCut = "op rows? positions? same_as? ";

const KeyTable kLaneCalls = {
    {"forward", kCut + "x? ids? y? state? session? lengths? stack?"},
    {"steps", kCut + "x? ids? y? state session? stack?"},
    {"state", "op state batch_size max_tokens? set? stack?"},
    {"set_state", "op state set"},
    {"open", "op state"},
    {"sync", "op state expect?"},
    {"load", "op state"},
    {"close", "op state expect?"},
    {"discard", "op state"},
    {"backward", kCut + "x grad_output grads"},
    {"backward_pieces", "op x grad_output pieces same_as"},
    {"tape", "op x grad_output y grads variants"},
    {"pair", "op prompts decode embed? head? prompts_out ids logits nll"},
    {"stack", "op stack options config?"},
    {"train_step", "op ids targets rows? loss? stack?"},
    {"parameters", "op prefix stack?"},
    {"save_state", "op stack saved exp_avg? exp_avg_sq?"},
    {"load_state", "op stack saved"},
    {"loss_and_grads", "op ids targets num_items dropout_stream token_offset prefix"},
    {"loss_and_grads_pieces", "op ids targets num_items dropout_stream pieces same_as"},
    {"save_checkpoint", "op file stack?"},
    {"mlp", "op data_schedule_json"},
    {"mlp_train_step", "op x targets rows? loss"},
    {"mlp_weights", "op prefix"},
    {"gemm", kCut + "layout a b c?"},
    {"linear", "op a weight c? dc? grad_a? grad_weight?"},
    {"rms_norm", "op x weight eps y? dy? grad_x? grad_weight?"},
    {"layer_norm_functional", "op x normalized weight? bias? eps y? dy? grad_x? grad_weight? grad_bias?"},
    {"embedding", "op weight ids y? dy? grad_weight? padding_idx?"},
    {"cross_entropy", "op logits targets reduction? label_smoothing? num_items? ignore_index? loss? row_loss? grad?"},
    {"chunked_lm_head_loss", "op hidden weight targets loss grad_hidden grad_weight"},
    {"accumulate", "op parts pieces? sum"},
    {"accumulation_is_aligned", "op tokens pieces aligned"},
    {"clip_grad_norm", "op grads max_norm total_norm out"},
    {"optimizer", "op options max_norm params steps out exp_avg? exp_avg_sq?"},
    {"schedule", "op options steps lr"},
    {"residual_dropout", "op x residual p seed stream? offset? y grad_output? grad_x? grad_residual?"},
    {"lowbit_pack", "op w bits bf16_expanded codes exponents int8_expanded"},
    {"mlp_logits", "op x logits weight1 bias1 weight2 bias2"},
    {"int15_quantize", "op x hi lo exponents"},
    {"int15_gemm", "op a b c"},
    {"int15_expand", "op hi lo exponents y"},
    {"copy", "op x y"},
};

void check_call(const json& call, const KeyTable& table, const std::string& common, const std::string& where) {
  const std::string op = text_of(call, "op", where);
  check_keys(call, common + keys_of(table, op, "op", where), where + "/" + op);
  const std::string place = where + "/" + op;
  if (call.contains("expect_refusal")) check_keys(call["expect_refusal"], kRefusal, place + "/expect_refusal");
  if (call.contains("set")) {
    check_keys(call["set"], "pieces? cached_tokens? buffered_tokens? pending?", place + "/set");
  }
  if (!call.contains("expect")) return;
  const json& expect = call["expect"];
  check_keys(expect, "state? reports? state_layers?", place + "/expect");
  const std::string state_keys = "pieces? cached_tokens? buffered_tokens? pending?";
  if (expect.contains("state")) check_keys(expect["state"], state_keys, place + "/expect/state");
  if (expect.contains("state_layers")) {
    for (const json& layer : expect["state_layers"]) check_keys(layer, state_keys, place + "/expect/state_layers");
  }
}

void check_each(const json& list, std::string_view keys, const std::string& where) {
  if (!list.is_array()) refuse(where, "must be a list");
  for (const json& entry : list) check_keys(entry, keys, where);
}

void check_stack_expect(const json& expect, const std::string& where) {
  check_keys(expect["start"], "params_sha256 rng_counter n_params? parameters?", where + "/start");
  if (expect.contains("ragged")) {
    check_keys(expect["ragged"], "lengths logits? logits_sha256", where + "/ragged");
  }
  if (expect.contains("decode")) check_keys(expect["decode"], "prefill steps", where + "/decode");
  if (expect.contains("checkpoint")) {
    check_keys(expect["checkpoint"], "file after_step sha256 bytes", where + "/checkpoint");
  }
  if (expect.contains("final")) check_keys(expect["final"], "params exp_avg exp_avg_sq", where + "/final");
  if (expect.contains("final_checkpoint")) {
    check_keys(expect["final_checkpoint"], "sha256 bytes?", where + "/final_checkpoint");
  }
}

void check_train_options(const json& options, const std::string& where) {
  check_keys(options["optimizer"], "lr beta1 beta2 eps weight_decay", where + "/optimizer");
  if (!options["schedule"].is_null()) check_keys(options["schedule"], kSchedule, where + "/schedule");
}

// The lists and objects inside a case of this kind.
void check_content(const json& body, const std::string& kind, const std::string& where) {
  if (kind == "block") {
    for (const json& call : body["calls"]) {
      check_call(call, kBlockCalls, kCallKeys, where + "/calls");
      if (call.contains("variants")) {
        check_each(call["variants"], "activation_budget_bytes minimum_replay_ops_per_byte retained stage_bytes",
                   where + "/variants");
      }
    }
  } else if (kind == "generator") {
    for (const json& call : body["calls"]) {
      check_call(call, kGeneratorCalls, "op out counter_after load_before? ", where + "/calls");
    }
  } else if (kind == "stack_refusal") {
    for (const json& call : body["calls"]) check_call(call, kStackCalls, "op expect_refusal? ", where + "/calls");
  } else if (kind == "math_unary" || kind == "math_binary") {
    check_each(body["functions"], "function x? a? b? out options?", where + "/functions");
  } else if (kind == "optimizer") {
    check_each(body["steps"],
               "t grads lr_bits total_norm_bits params_sha256 exp_avg_sha256 exp_avg_sq_sha256? scalars_bits? params? "
               "exp_avg? exp_avg_sq? clipped_grad?",
               where + "/steps");
  } else if (kind == "schedules") {
    check_each(body["schedules"], "options config t lr", where + "/schedules");
    for (const json& schedule : body["schedules"]) check_keys(schedule["config"], kSchedule, where + "/config");
  } else if (kind == "init") {
    check_each(body["stacks"], "config seed tensors params_sha256 counter_after", where + "/stacks");
    for (const json& stack : body["stacks"]) {
      check_each(stack["tensors"], "name shape sha256 first_bits", where + "/tensors");
    }
  } else if (kind == "stack_train") {
    check_train_options(body["options"], where + "/options");
    check_each(body["steps"], "ids targets " + kStepRecord, where + "/steps");
    check_stack_expect(body["expect"], where + "/expect");
  } else if (kind == "tutorial") {
    check_train_options(body["options"], where + "/options");
    check_each(body["steps"], kStepRecord, where + "/steps");
    check_stack_expect(body["expect"], where + "/expect");
    check_keys(body["text"], "file sha256", where + "/text");
  } else if (kind == "checkpoint_variants") {
    check_each(body["variants"], "name file note? train inference next_step? next_step_refusal? reference_accepts?",
               where + "/variants");
  }
}

}  // namespace

void check_keys(const json& object, std::string_view keys, const std::string& where) {
  if (!object.is_object()) refuse(where, "must be an object");
  std::set<std::string, std::less<>> known;
  while (!keys.empty()) {
    const std::size_t end = std::min(keys.find(' '), keys.size());
    std::string_view key = keys.substr(0, end);
    keys.remove_prefix(std::min(end + 1, keys.size()));
    if (key.empty()) continue;
    const bool optional = key.back() == '?';
    if (optional) key.remove_suffix(1);
    if (!optional && !object.contains(key)) refuse(where, "the key '" + std::string(key) + "' is missing");
    known.emplace(key);
  }
  for (const auto& [key, value] : object.items()) {
    if (known.contains(key)) continue;
    std::string list;
    for (const std::string& name : known) list += (list.empty() ? "" : ", ") + name;
    refuse(where, "unknown key '" + key + "'; known are " + list);
  }
}

std::string check_case(const json& body, const std::string& where) {
  const std::string kind = text_of(body, "kind", where);
  const std::string place = where + ": " + text_of(body, "id", where);
  check_keys(body, kEnvelope + keys_of(kCases, kind, "kind", place), place);
  if (body["schema"] != "samba.case/1") refuse(place, "unknown schema " + body["schema"].dump());
  if (const auto keys = kOptions.find(kind); keys != kOptions.end()) {
    check_keys(body["options"], keys->second, place + "/options");
  }
  if (const auto keys = kExpect.find(kind); keys != kExpect.end()) {
    check_keys(body["expect"], keys->second, place + "/expect");
  }
  if (body.contains("expect_refusal")) check_keys(body["expect_refusal"], kRefusal, place + "/expect_refusal");
  check_content(body, kind, place);
  return kind;
}

std::string check_hash_case(const json& body, const std::string& where) {
  const std::string kind = text_of(body, "kind", where);
  const std::string place = where + ": " + text_of(body, "id", where);
  check_keys(body, keys_of(kHashCases, kind, "kind", place), place);
  check_each(body["results"], "name dtype? shape sha256 first_bits? last_bits? sum? values?", place + "/results");
  if (body.contains("draws")) {
    check_each(body["draws"], "stream name shape dist mean? sd? low? high? fan_in? sha256 expanded_sha256?",
               place + "/draws");
  }
  if (kind == "samba_train") {
    check_keys(body["options"], kTrainOptions, place + "/options");
    check_train_options(body["options"], place + "/options");
    check_keys(body["expect"], "start eval_loss_bits target_count checkpoints", place + "/expect");
    check_each(body["expect"]["checkpoints"], "after_step sha256 bytes", place + "/checkpoints");
    check_each(body["steps"], kStepRecord, place + "/steps");
    check_keys(body["greedy"], "prompt tokens", place + "/greedy");
    return kind;
  }
  if (kind == "samba_infer") {
    check_keys(body["expect"], "parameters params_sha256 expanded_params_sha256?", place + "/expect");
  }
  for (const json& call : body["calls"]) {
    check_call(call, kind == "block" ? kHashCalls : kInferCalls, "", place + "/calls");
  }
  return kind == "block" ? "hash_block" : kind;
}

void check_lane(const json& lane, const std::string& where) {
  check_keys(lane, "schema id kind reference note needs model programs programs_17? column_sets tensors cells", where);
  const json& model = lane["model"];
  const std::string type = text_of(model, "type", where + "/model");
  check_keys(model,
             keys_of({{"block", "type block options weight_format"},
                      {"stack", "type config weight_format"},
                      {"mlp", "type weight_format"},
                      {"functions", "type"}},
                     type, "model type", where),
             where + "/model");
  for (const char* set : {"programs", "programs_17"}) {
    if (!lane.contains(set)) continue;
    for (const auto& [part, program] : lane[set].items()) {
      const std::string place = where + "/" + set + "/" + part;
      check_keys(program, "after? calls digest", place);
      check_keys(program["digest"], "form arrays? parts? given? items? array?", place + "/digest");
      for (const json& call : program["calls"]) check_call(call, kLaneCalls, "", place);
    }
  }
  check_each(lane["cells"], "fixture tensors inputs parts programs?", where + "/cells");
  for (const json& cell : lane["cells"]) {
    for (const auto& [name, input] : cell["inputs"].items()) {
      if (input.is_string()) continue;
      check_keys(input, "of shape offset? strides? wrap? reshape? bytes? slice? pad?", where + "/inputs/" + name);
    }
    for (const auto& [part, expected] : cell["parts"].items()) {
      check_keys(expected, "digest columns sub? texts? results non_finite?", where + "/parts/" + part);
    }
  }
}

}  // namespace samba::verify
