#include "samba/verify/verify.h"

#include <atomic>
#include <chrono>
#include <exception>
#include <map>
#include <mutex>
#include <new>
#include <thread>

#include "samba/core/error.h"
#include "samba/verify/hint.h"
#include "samba/verify/kinds.h"
#include "samba/verify/runner.h"

namespace samba::verify {
namespace {

const std::map<std::string, KindRunner> kRunners = {
    {"math_unary", run_math},
    {"math_binary", run_math},
    {"gemm", run_gemm},
    {"linear", run_linear},
    {"rms_norm", run_rms_norm},
    {"layer_norm_block", run_layer_norm_block},
    {"layer_norm_functional", run_layer_norm_functional},
    {"embedding", run_embedding},
    {"accumulate", run_accumulate},
    {"accumulation_is_aligned", run_accumulation_is_aligned},
    {"generator", run_generator},
    {"block", run_block},
    {"cross_entropy", run_cross_entropy},
    {"clip_grad_norm", run_clip_grad_norm},
    {"chunked_lm_head_loss", run_chunked_lm_head_loss},
    {"optimizer", run_optimizer},
    {"schedules", run_schedules},
    {"init", run_init},
    {"stack_train", run_stack_train},
    {"stack_refusal", run_stack_refusal},
    {"tutorial", run_tutorial},
    {"checkpoint_variants", run_checkpoint_variants},
    {"lowbit_pack", run_lowbit_pack},
    {"lowbit_expand", run_lowbit_expand},
    {"mlp_logits", run_mlp_logits},
    {"mlp_train", run_mlp_train},
    {"mlp_checkpoint_variants", run_mlp_checkpoint_variants},
    {"stack_forward", run_stack_forward},
    {"hash_block", run_hash_block},
    {"samba_train", run_samba_train},
    {"samba_infer", run_samba_infer},
    {"columns", run_column},
};

// Calls that the interface cannot make: why the case is not run.
void refuse_untyped_calls(const Case& test) {
  for (const json& need : test.body->at("needs")) {
    if (need == "refusal.untyped") throw NotApplicable("the interface cannot hold a length that is no integer");
  }
}

void run_one(const Case& test, Executor& executor, const VerifyOptions& options, CaseResult& result) {
  Checker check(options.digests);
  try {
    refuse_untyped_calls(test);
    const KindRunner runner = find_runner(test.kind);
    if (runner == nullptr) throw NotApplicable("samba does not run the kind " + test.kind);
    RunContext run{test, executor, check, options};
    runner(run);
    if (check.compared() == 0) check.holds("case", false, "nothing was compared");
  } catch (const NotApplicable& reason) {
    result.verdict = Verdict::not_applicable;
    result.reason = reason.what();
    return;
  } catch (const std::bad_alloc&) {
    throw;  // says nothing of the bits
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::resource) throw;
    check.holds("call", false, "refused (" + std::string(kind_word(error.kind())) + "): " + error.what());
  } catch (const std::exception& error) {
    check.holds("case", false, std::string("failed: ") + error.what());
  }
  result.compared = check.compared();
  result.digest = check.digest();
  result.differences = check.differences().size();
  if (result.differences == 0) return;
  result.verdict = Verdict::different;
  result.first = check.differences().front();
  result.first->hint = divergence_hint(*result.first, test.tensors);
}

// A case is run three times more for it, on the slow reference too: that much is spent on the first ones that differ.
constexpr int kTracedCases = 3;

bool keeps_digests_alone(const std::string& kind) {
  return kind == "columns" || kind == "hash_block" || kind == "samba_train" || kind == "samba_infer";
}

std::optional<Difference> find_stage(const Case& test, Executor& executor, const VerifyOptions& options) {
  const std::unique_ptr<Executor> reference = options.reference();
  if (reference->name() == executor.name()) return std::nullopt;
  const auto run = [&](Executor& on, Trace& trace) {
    Checker unused;
    RunContext context{test, on, unused, options, &trace};
    try {
      find_runner(test.kind)(context);
    } catch (const std::exception&) {
      // What was computed up to here is noted.
    }
  };
  std::optional<Difference> stage = earliest_difference(executor, *reference, run);
  if (stage) stage->hint = divergence_hint(*stage, test.tensors);
  return stage;
}

void run_timed(const Case& test, Executor& executor, const VerifyOptions& options, CaseResult& result) {
  result.id = test.id;
  result.kind = test.kind;
  result.file = test.file;
  if (test.kind == "columns") {
    const json& part = test.body->at("cells").at(test.cell).at("parts").at(test.part);
    result.records = test.body->at("column_sets").at(part.at("columns").get<std::size_t>());
  }
  const auto start = std::chrono::steady_clock::now();
  run_one(test, executor, options, result);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

KindRunner find_runner(const std::string& kind) {
  const auto found = kRunners.find(kind);
  return found == kRunners.end() ? nullptr : found->second;
}

std::size_t VerifyReport::count(Verdict verdict) const {
  std::size_t total = 0;
  for (const CaseResult& result : results) total += result.verdict == verdict ? 1 : 0;
  return total;
}

std::vector<Case> load_cases(std::span<const std::filesystem::path> paths, const VerifyOptions& options) {
  CaseLoader loader;
  std::vector<Case> cases;
  for (const auto& path : paths) {
    for (Case& one : loader.load(path)) cases.push_back(std::move(one));
  }
  std::erase_if(cases, [&](const Case& test) {
    return test.id.find(options.id_part) == std::string::npos ||
           (options.accept && !options.accept(test.id, test.kind));
  });
  return cases;
}

VerifyReport run_cases(std::span<Executor* const> executors, std::span<const Case> cases, const VerifyOptions& options,
                       const std::function<void(const CaseResult&)>& done) {
  for (const Executor* executor : executors) {
    if (executor->numeric_mode() == NumericMode::identical) continue;
    refuse_unsupported("recorded cases know the numeric mode identical only, got " +
                       std::string(numeric_mode_name(executor->numeric_mode())));
  }
  VerifyReport report;
  report.results.resize(cases.size());
  std::mutex telling;
  std::size_t next = 0, finished = 0;
  std::atomic<int> traced = 0;
  const auto work = [&](Executor& executor) {
    for (;;) {
      std::size_t index = 0;
      {
        const std::lock_guard lock(telling);
        if (next == cases.size()) return;
        index = next++;
        if (options.progress) options.progress(finished, cases.size(), cases[index].id);
      }
      CaseResult& result = report.results[index];
      run_timed(cases[index], executor, options, result);
      if (result.verdict == Verdict::different && options.reference && keeps_digests_alone(result.kind) &&
          traced++ < kTracedCases) {
        result.stage = find_stage(cases[index], executor, options);
      }
      const std::lock_guard lock(telling);
      ++finished;
      if (done) done(result);
    }
  };
  std::exception_ptr failure;
  const auto fail = [&] {
    const std::lock_guard lock(telling);
    if (!failure) failure = std::current_exception();
    next = cases.size();  // the others stop behind their case
  };
  const auto guarded = [&](Executor& executor) {
    try {
      work(executor);
    } catch (...) {
      fail();
    }
  };
  {
    std::vector<std::jthread> others;
    try {
      for (Executor* executor : executors.subspan(1)) others.emplace_back([&, executor] { guarded(*executor); });
    } catch (...) {
      fail();
    }
    guarded(*executors[0]);
  }
  if (failure) std::rethrow_exception(failure);
  return report;
}

VerifyReport verify_cases(Executor& executor, std::span<const std::filesystem::path> paths,
                          const VerifyOptions& options, const std::function<void(const CaseResult&)>& done) {
  Executor* const one = &executor;
  return run_cases({&one, 1}, load_cases(paths, options), options, done);
}

}  // namespace samba::verify
