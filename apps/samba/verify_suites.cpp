#include "verify_suites.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "output.h"
#include "progress.h"
#include "samba/backends/registry.h"
#include "samba/core/error.h"
#include "samba/verify/machine.h"
#include "samba/verify/suites.h"

namespace samba::apps {

namespace {

std::filesystem::path own_path() { return std::filesystem::read_symlink("/proc/self/exe"); }

std::vector<verify::Suite> all_suites() { return verify::builtin_suites(verify::find_suites(own_path())); }

constexpr const char* kGpus[] = {"cuda", "hip"};

// Empty: the device can be used here.
std::string why_not_there(const std::string& device) {
  try {
    samba::make_executor(device);
    return {};
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::resource) throw;
    return error.what();
  }
}

// What the flags --device, --isa and --threads leave of this machine.
verify::PlanRequest plan_request(const SuiteFlags& flags, const CommonOptions& common) {
  verify::PlanRequest request;
  request.quick = flags.quick;
  request.cores = verify::usable_cores();
  request.instruction_sets = instruction_sets();
  if (!common.instruction_set.empty()) {
    make_executor(common);  // refuses one that is not there
    request.instruction_sets = {common.instruction_set};
  }
  if (common.threads > 0) request.threads = {common.threads};
  if (common.device != "auto") {
    make_executor(common);
    request.devices = {common.device};
    return request;
  }
  const std::vector<std::string> names = executor_names();
  for (const char* device : kGpus) {
    if (why_not_there(device).empty()) request.devices.push_back(device);
  }
  request.devices.insert(request.devices.end(), names.rbegin(), names.rend());  // the fast ones first
  return request;
}

std::vector<std::string> absent_of(const CommonOptions& common, const verify::PlanRequest& request) {
  std::vector<std::string> absent;
  std::vector<std::string> there = executor_names();
  for (const char* device : kGpus) {
    const std::string why = why_not_there(device);
    if (why.empty()) {
      there.push_back(device);
    } else {
      absent.push_back("device " + std::string(device) + ": " + why);
    }
  }
  for (const std::string& device : there) {
    if (std::find(request.devices.begin(), request.devices.end(), device) == request.devices.end()) {
      absent.push_back("device " + device + " (--device " + common.device + ")");
    }
  }
  for (const std::string& set : instruction_sets()) {
    const auto& sets = request.instruction_sets;
    if (std::find(sets.begin(), sets.end(), set) == sets.end()) absent.push_back("instruction set " + set + " (--isa)");
  }
  absent.push_back("the numeric modes deterministic and fast, which promise no bits across machines");
  return absent;
}

}  // namespace

nlohmann::json origin_json() {
  return {{"samba", SAMBA_VERSION}, {"build", SAMBA_BUILD_DESCRIPTION}, {"machine", verify::machine_json()}};
}

int list_suites(const CommonOptions& common) {
  nlohmann::json list = nlohmann::json::array();
  for (const verify::Suite& suite : all_suites()) {
    const std::size_t cases = verify::load_cases({&suite.folder, 1}).size();
    if (common.json) {
      list.push_back({{"name", suite.name}, {"cases", cases}, {"about", suite.about}});
      continue;
    }
    char line[256];
    std::snprintf(line, sizeof line, "%-20s %6zu cases  %s\n", suite.name.c_str(), cases, suite.about.c_str());
    print(line);
  }
  if (common.json) print(list.dump() + "\n");
  return 0;
}

int verify_suites(const SuiteFlags& flags, const CommonOptions& common) {
  const std::vector<verify::Suite> suites = verify::chosen_suites(all_suites(), flags.names);
  const verify::PlanRequest request = plan_request(flags, common);
  const std::vector<verify::Configuration> plan = verify::plan_of(request);
  const auto make = [](const verify::Configuration& configuration) {
    return samba::make_executor(configuration.device, {configuration.threads, configuration.instruction_set});
  };
  verify::VerifyOptions options;
  options.id_part = flags.only;
  options.digests = common.json;
  options.reference = [] { return samba::make_executor("reference"); };
  std::unique_ptr<Progress> bar;
  verify::SuitesProgress progress;
  progress.update = [&](std::size_t done, std::size_t total, const std::string& what) {
    if (!bar) bar = std::make_unique<Progress>(common.progress, "verify", "cases", 0, total);
    bar->update(done, what);
  };
  progress.done = [&](const verify::Configuration& configuration, const verify::CaseResult& result) {
    const bool shown = flags.all || result.verdict == verify::Verdict::different;
    if (shown && !common.json) print(configuration.name() + ": " + verify::result_line(result) + "\n");
  };
  verify::SuitesReport report = verify::run_suites(suites, plan, make, options, progress);
  if (bar) bar->finish();
  report.absent = absent_of(common, request);
  if (report.runs.empty() || report.runs[0].report.results.empty()) {
    refuse_value("the suites hold no case" + (flags.only.empty() ? "" : " of --only " + flags.only));
  }
  if (common.json) {
    nlohmann::json document = origin_json();
    document.update(verify::suites_json(report));
    print(document.dump() + "\n");
  } else {
    const nlohmann::json machine = verify::machine_json();
    print("samba " SAMBA_VERSION " (" SAMBA_BUILD_DESCRIPTION ") on " + machine.at("processor").get<std::string>() +
          ", " + machine.at("cores").dump() + " cores, " + machine.at("system").get<std::string>() + "\n\n" +
          verify::suites_table(report) + verify::closing_line(report) + "\n");
  }
  return report.passed() ? 0 : 1;
}

}  // namespace samba::apps
