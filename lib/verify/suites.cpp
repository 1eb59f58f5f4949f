#include "samba/verify/suites.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <set>

#include "samba/core/error.h"
#include "samba/core/names.h"

namespace samba::verify {
namespace {

namespace fs = std::filesystem;

struct Known {
  const char* name;
  const char* about;
};

constexpr Known kKnown[] = {
    {"columns", "published digests on which Apple, NVIDIA, AMD and CPU records agree"},
    {"hashes", "blocks, training and decoding of larger models, drawn by seed, by their SHA-256"},
    {"core", "elementary functions, matrix product, norms, embedding, random stream"},
    {"attention", "Transformer block: forward, decode, refusals"},
    {"attention_backward", "Transformer block: gradients, tape"},
    {"mamba1", "Mamba-1 block: forward, decode, refusals"},
    {"mamba2", "Mamba-2 block: forward, decode, refusals"},
    {"mamba12_backward", "Mamba-1 and Mamba-2 blocks: gradients"},
    {"mamba3", "Mamba-3 block: forward, decode, refusals"},
    {"mamba3_backward", "Mamba-3 block: gradients"},
    {"lowbit", "packed weights: bfloat16 and int8"},
    {"mlp", "the small MLP and its file"},
    {"samba", "optimizers, losses, schedules, whole stacks, checkpoints, training runs"},
};

std::string names_of(const std::vector<Suite>& suites) {
  std::string names;
  for (const Suite& suite : suites) names += (names.empty() ? "" : ", ") + suite.name;
  return names;
}

bool is_large_column(const std::string& id) {
  return id.ends_with(".batchscale") || id.ends_with(".batchgrad") || id.ends_with(".ragged");
}

}  // namespace

fs::path find_suites(const fs::path& executable) {
  std::vector<fs::path> places;
  if (const char* named = std::getenv("SAMBA_SUITES"); named != nullptr && *named != '\0') {
    places = {named};
  } else {
    const fs::path beside = executable.parent_path();
    places = {beside / "share/samba/suites", beside.parent_path() / "share/samba/suites"};
  }
  std::string tried;
  for (const fs::path& place : places) {
    if (fs::is_directory(place)) return fs::canonical(place);
    tried += (tried.empty() ? "" : ", ") + place.string();
  }
  refuse_value("the suites that come with samba are not there (" + tried +
               "); set SAMBA_SUITES to their folder, or give files with --cases");
}

std::vector<Suite> builtin_suites(const fs::path& folder) {
  std::vector<Suite> suites;
  for (const Known& known : kKnown) {
    if (fs::is_directory(folder / known.name)) suites.push_back({known.name, known.about, folder / known.name});
  }
  if (suites.empty()) refuse_value(folder.string() + " holds none of samba's suites");
  return suites;
}

std::vector<Suite> chosen_suites(const std::vector<Suite>& suites, std::span<const std::string> names) {
  if (names.empty()) return suites;
  std::vector<Suite> chosen;
  for (const Suite& suite : suites) {
    if (std::find(names.begin(), names.end(), suite.name) != names.end()) chosen.push_back(suite);
  }
  for (const std::string& name : names) {
    if (std::any_of(suites.begin(), suites.end(), [&](const Suite& suite) { return suite.name == name; })) continue;
    std::vector<std::string> known;
    for (const Suite& suite : suites) known.push_back(suite.name);
    const std::string nearest = nearest_name(name, known);
    refuse_value("unknown suite '" + name + "'; there are: " + names_of(suites) +
                 (nearest.empty() ? "" : "; did you mean " + nearest + "?"));
  }
  return chosen;
}

std::string_view depth_text(Depth depth) {
  switch (depth) {
    case Depth::whole:
      return "everything";
    case Depth::most:
      return "without the tutorials";
    case Depth::moderate:
      return "without tutorials, large batches and the training of the hash suites";
    case Depth::small:
      break;
  }
  return "case files and one fixture of the columns, small batches";
}

bool belongs(Depth depth, const std::string& id, const std::string& kind) {
  if (depth == Depth::whole) return true;
  if (kind == "tutorial") return false;
  if (depth == Depth::most) return true;
  if (kind == "samba_train" || kind == "samba_infer" || (kind == "columns" && is_large_column(id))) return false;
  if (depth == Depth::moderate) return true;
  if (kind == "hash_block" || kind == "stack_train") return false;
  return kind != "columns" || id.find("[base]") != std::string::npos;
}

std::string Configuration::name() const {
  const std::string place = instruction_set.empty() ? device : device + " " + instruction_set;
  return place + ", " + std::to_string(threads) + (threads == 1 ? " thread" : " threads");
}

std::vector<Configuration> plan_of(const PlanRequest& request) {
  std::set<int> counts(request.threads.begin(), request.threads.end());
  if (counts.empty()) counts = {1, 2, request.cores};
  std::vector<Configuration> plan;
  const auto add = [&](const std::string& device, const std::string& set, int threads, Depth depth) {
    plan.push_back({device, set, threads, threads == 1 ? std::max(1, request.cores) : 1, depth});
  };
  for (const std::string& device : request.devices) {
    if (device == "reference") {
      add(device, "", 1, Depth::small);
      continue;
    }
    if (device == "cuda" || device == "hip") {  // the threads of this process compute nothing there
      add(device, "", 1, request.quick ? Depth::moderate : Depth::whole);
      continue;
    }
    const std::vector<std::string> none = {""};
    const std::vector<std::string>& sets = device == "cpu" ? request.instruction_sets : none;
    for (std::size_t i = 0; i < sets.size(); ++i) {
      bool first = i == 0;  // of the best instruction set: everything, once
      for (const int threads : counts) {
        const bool plain = threads == 1;
        if (request.quick && sets[i] == "scalar" && !plain && counts.contains(1)) continue;
        Depth depth = first ? Depth::whole : i == 0 || plain ? Depth::most : Depth::moderate;
        if (request.quick) depth = first ? Depth::moderate : Depth::small;
        if (sets[i] == "scalar") depth = Depth::small;  // a fused step is a call there
        add(device, sets[i], threads, depth);
        first = false;
      }
    }
  }
  return plan;
}

bool SuitesReport::passed() const {
  return std::all_of(runs.begin(), runs.end(), [](const ConfigurationRun& run) { return run.report.passed(); });
}

SuitesReport run_suites(const std::vector<Suite>& suites, std::span<const Configuration> plan,
                        const MakeConfigured& make, const VerifyOptions& options, const SuitesProgress& progress) {
  const auto start = std::chrono::steady_clock::now();
  const auto since = [](auto from) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - from).count();
  };
  SuitesReport report;
  report.suites = suites;
  std::vector<Case> cases;
  for (const Suite& suite : suites) {
    std::vector<Case> more = load_cases({&suite.folder, 1}, options);
    report.suite_cases.push_back(more.size());
    for (Case& one : more) cases.push_back(std::move(one));
  }
  std::size_t total = 0, done = 0;
  for (const Configuration& configuration : plan) {
    total += static_cast<std::size_t>(std::count_if(
        cases.begin(), cases.end(), [&](const Case& one) { return belongs(configuration.depth, one.id, one.kind); }));
  }
  for (const Configuration& configuration : plan) {
    ConfigurationRun run;
    run.configuration = configuration;
    std::vector<Case> chosen;
    for (const Case& one : cases) {
      if (belongs(configuration.depth, one.id, one.kind)) chosen.push_back(one);
    }
    run.left_out = cases.size() - chosen.size();
    std::vector<std::unique_ptr<Executor>> executors;
    std::vector<Executor*> pointers;
    for (int i = 0; i < configuration.side_by_side; ++i) {
      executors.push_back(make(configuration));
      pointers.push_back(executors.back().get());
    }
    VerifyOptions told = options;
    told.progress = [&](std::size_t, std::size_t, const std::string& id) {
      if (progress.update) progress.update(done, total, configuration.name() + ": " + id);
    };
    const auto begun = std::chrono::steady_clock::now();
    run.report = run_cases(pointers, chosen, told, [&](const CaseResult& result) {
      ++done;
      if (progress.done) progress.done(configuration, result);
    });
    run.seconds = since(begun);
    report.runs.push_back(std::move(run));
  }
  report.seconds = since(start);
  return report;
}

}  // namespace samba::verify
