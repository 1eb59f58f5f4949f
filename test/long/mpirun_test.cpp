// samba train under a real mpirun: ranks that are processes, killed ones, two hosts.
#include <signal.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstdio>
#include <iostream>

#include "command.h"
#include "samba/core/sha256.h"

namespace samba {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using nlohmann::json;

CommandResult shell(const std::string& line) {
  CommandResult result;
  FILE* pipe = ::popen((line + " 2>&1").c_str(), "r");
  std::array<char, 4096> buffer{};
  for (std::size_t got; (got = ::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    result.out.append(buffer.data(), got);
  const int status = ::pclose(pipe);
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

bool can_run_mpi() {
  static const bool can =
      shell("command -v mpirun").code == 0 && fs::exists(Path(SAMBA_EXECUTABLE).parent_path() / "samba_mpi.so");
  if (!can) WARN("skipped: mpirun or the module samba_mpi.so is not here (libopenmpi-dev)");
  return can;
}

// A test may run as root and on fewer processors than it has ranks.
std::string mpirun(int ranks) {
  return "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe -n " +
         std::to_string(ranks) + " " + SAMBA_EXECUTABLE + " ";
}

json ranked_config() {
  json config = tiny_config("text.txt");
  config["steps"] = 8;
  config["model"]["dropout"] = 0.1;
  config["batch"] = {{"rows", 8}, {"length", 64}};
  config["checkpoint"] = {{"every", 4}, {"digest_every", 1}};
  config["schedule"]["total_steps"] = 100;
  return config;
}

// Without evaluations, of which a run in parts has more.
std::vector<json> steps_of(const Path& run) {
  std::vector<json> lines = metrics_of(run);
  std::erase_if(lines, [](const json& line) { return line.contains("eval_loss"); });
  return lines;
}

std::string train_line(const TinyRun& run, const std::string& out) {
  return "train --threads 1 --config " + run.file("tiny.json") + " --out " + run.file(out);
}

void check_same_run(const TinyRun& run, const std::string& left, const std::string& right) {
  CHECK(steps_of(run.path() / left) == steps_of(run.path() / right));
  for (const auto& entry : fs::directory_iterator(run.path() / left / "checkpoints")) {
    CAPTURE(entry.path().filename().string());
    CHECK(read_file(entry.path()) == read_file(run.path() / right / "checkpoints" / entry.path().filename()));
  }
}

TEST_CASE("2 and 4 processes leave the checkpoints, metrics and cards of one") {
  if (!can_run_mpi()) return;
  for (const int accumulation : {1, 2}) {
    const TinyRun run;
    json config = ranked_config();
    config["batch"]["accumulation_steps"] = accumulation;
    config["model"]["tie_embeddings"] = accumulation == 1;
    run.write(config);
    REQUIRE(run.train("alone", {"--threads", "1"}).code == 0);
    for (const int ranks : {2, 4}) {
      const std::string out = "ranks" + std::to_string(ranks);
      const CommandResult result = shell(mpirun(ranks) + train_line(run, out));
      INFO(result.out);
      REQUIRE(result.code == 0);
      CHECK_THAT(result.out, Contains(std::to_string(ranks) + " ranks by MPI"));
      check_same_run(run, "alone", out);
    }
  }
}

TEST_CASE("a general stack with momentum is saved by 2 processes as by one") {
  if (!can_run_mpi()) return;
  const TinyRun run;
  json config = ranked_config();
  config["model"] = json::parse(R"({"vocab": 256, "d_model": 32, "tie_embeddings": false, "layers": [
      {"kind": "mamba3"}, {"kind": "transformer", "n_heads": 2, "intermediate": 32, "window": 16}]})");
  config["optimizer"] = {{"kind", "sgd"}, {"momentum", 0.9}, {"max_norm", 1.0}};
  run.write(config);
  REQUIRE(run.train("alone", {"--threads", "1"}).code == 0);
  const CommandResult result = shell(mpirun(2) + train_line(run, "ranks"));
  INFO(result.out);
  REQUIRE(result.code == 0);
  check_same_run(run, "alone", "ranks");
  const CommandResult more = shell(mpirun(4) + "train --threads 1 --steps 10 --resume " + run.file("ranks"));
  INFO(more.out);
  REQUIRE(more.code == 0);
  REQUIRE(samba_command({"train", "--threads", "1", "--steps", "10", "--resume", run.file("alone")}).code == 0);
  check_same_run(run, "alone", "ranks");
}

TEST_CASE("a run goes on with any other number of ranks to the same bytes") {
  if (!can_run_mpi()) return;
  const TinyRun run;
  run.write(ranked_config());
  REQUIRE(run.train("alone", {"--threads", "1"}).code == 0);
  REQUIRE(shell(mpirun(4) + train_line(run, "parts") + " --steps 3").code == 0);
  REQUIRE(shell(mpirun(2) + "train --threads 1 --steps 5 --resume " + run.file("parts")).code == 0);
  REQUIRE(samba_command({"train", "--threads", "1", "--steps", "6", "--resume", run.file("parts")}).code == 0);
  REQUIRE(shell(mpirun(4) + "train --threads 1 --steps 8 --resume " + run.file("parts")).code == 0);
  CHECK(steps_of(run.path() / "alone") == steps_of(run.path() / "parts"));
  const std::string last = "checkpoints/step-00000008.samba";
  CHECK(read_file(run.path() / "alone" / last) == read_file(run.path() / "parts" / last));
}

TEST_CASE("what all ranks refuse is told once, with the exit code of one process") {
  if (!can_run_mpi()) return;
  const TinyRun run;
  run.write(ranked_config());
  const CommandResult three = shell(mpirun(3) + train_line(run, "run"));
  CHECK(three.code == 2);
  const std::string said = "accepted: 1, 2, 4";
  CHECK_THAT(three.out, Contains("3 ranks cannot give the bits of one process") && Contains(said));
  CHECK(three.out.find(said) == three.out.rfind(said));
  CHECK(!fs::exists(run.file("run")));
  const CommandResult bad = shell(mpirun(2) + train_line(run, "run") + " --set optimizer.lr=nonsense");
  CHECK(bad.code == 2);
  CHECK(bad.out.find("/optimizer/lr") == bad.out.rfind("/optimizer/lr"));
}

// The process of rank `rank` whose command line names `folder`.
pid_t find_rank(const std::string& folder, int rank) {
  const std::string wanted = "OMPI_COMM_WORLD_RANK=" + std::to_string(rank);
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const auto content = [&](const char* file) {
      std::ifstream stream(entry.path() / file, std::ios::binary);
      return std::string(std::istreambuf_iterator<char>(stream), {});
    };
    const std::string line = content("cmdline"), environment = content("environ");
    if (line.find(folder) == std::string::npos || line.find(SAMBA_EXECUTABLE) != 0) continue;
    if (environment.find(wanted + '\0') != std::string::npos) return std::stoi(name);
  }
  return 0;
}

// An endless run of several ranks, past its checkpoint of step 4.
class EndlessRun : public TinyRun {
 public:
  // `environment`: of mpirun, as "NAME=VALUE ".
  explicit EndlessRun(int ranks, const std::string& environment = "") {
    json config = ranked_config();
    config["steps"] = 4000;
    config["schedule"]["total_steps"] = 4000;
    config["checkpoint"]["every"] = 2;
    write(config);
    running_ = std::thread([this, ranks, environment] {
      ended_ = shell("timeout 120 env " + environment + mpirun(ranks) + train_line(*this, "run"));
    });
    while (!fs::exists(file("run/checkpoints/step-00000004.samba"))) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
  ~EndlessRun() {
    if (running_.joinable()) running_.join();
  }
  EndlessRun(const EndlessRun&) = delete;
  EndlessRun& operator=(const EndlessRun&) = delete;

  pid_t process_of(int rank) const { return find_rank(file("run"), rank); }
  // How mpirun ended, some time after something was done to a rank.
  const CommandResult& wait() {
    running_.join();
    return ended_;
  }

 private:
  std::thread running_;
  CommandResult ended_;
};

TEST_CASE("a killed rank ends the run, and its last checkpoint goes on with another number of ranks") {
  if (!can_run_mpi()) return;
  for (const int victim : {0, 1, 3}) {
    CAPTURE(victim);
    EndlessRun run(4);
    const pid_t process = run.process_of(victim);
    REQUIRE(process > 0);
    const auto begin = std::chrono::steady_clock::now();
    ::kill(process, SIGKILL);
    const CommandResult& ended = run.wait();
    const auto took = std::chrono::steady_clock::now() - begin;
    INFO(ended.out);
    CHECK(ended.code != 0);
    CHECK(ended.code != 124);
    CHECK(took < std::chrono::seconds(60));

    std::string latest = read_file(run.path() / "run/latest");
    latest.pop_back();
    const int reached = std::stoi(latest.substr(latest.find("step-") + 5, 8));
    const std::string steps = std::to_string(reached + 3);
    const CommandResult more = shell(mpirun(2) + "train --threads 1 --steps " + steps + " --resume " + run.file("run"));
    INFO(more.out);
    REQUIRE(more.code == 0);
    REQUIRE(run.train("alone", {"--threads", "1", "--steps", steps}).code == 0);
    CHECK(steps_of(run.path() / "alone") == steps_of(run.path() / "run"));
  }
}

TEST_CASE("a rank that stands still counts as lost after a while") {
  if (!can_run_mpi()) return;
  EndlessRun run(2, "SAMBA_RANK_TIMEOUT=3 ");
  const pid_t process = run.process_of(1);
  REQUIRE(process > 0);
  ::kill(process, SIGSTOP);
  const CommandResult& ended = run.wait();
  ::kill(process, SIGKILL);
  INFO(ended.out);
  CHECK(ended.code == 4);
  CHECK_THAT(ended.out, Contains("a rank was lost: rank 1 does not answer for 3 s"));
}

TEST_CASE("two hosts with networks of their own give the bits of one process") {
  if (!can_run_mpi()) return;
  const CommandResult result = shell(std::string(SAMBA_SOURCE_DIR) + "/scripts/two_hosts.sh " + SAMBA_EXECUTABLE);
  if (result.code == 77) {
    WARN("skipped: " + result.out);
    return;
  }
  INFO(result.out);
  CHECK(result.code == 0);
  CHECK_THAT(result.out, Contains("two hosts, 4 ranks: equal"));
}

}  // namespace
}  // namespace samba
