// Training that is killed without warning (SIGKILL) at random moments, most of them inside the writing of a checkpoint,
// and resumed: the run is always loadable, and ends with the bits of the run that nobody disturbed. SAMBA_KILLS sets
// the number of kills (200). The same for the preparation of texts, half as often.
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdlib>
#include <map>
#include <random>
#include <thread>

#include "command.h"
#include "samba/convert/initial_model.h"
#include "samba/formats/token_shards.h"
#include "samba/train/prepare.h"

namespace samba {
namespace {

int kills_wanted() {
  const char* text = std::getenv("SAMBA_KILLS");
  return text == nullptr ? 200 : std::atoi(text);
}

// Dropout, schedule, clipping and accumulation on; a checkpoint after every step.
const std::vector<std::string> kSettings{"--set",      "model.dropout=0.1",
                                         "--set",      "batch.accumulation_steps=2",
                                         "--set",      "batch.length=128",
                                         "--set",      "checkpoint.every=1",
                                         "--set",      "checkpoint.keep_last=2",
                                         "--set",      "checkpoint.digest_every=3",
                                         "--progress", "never"};

std::vector<std::string> with_settings(std::vector<std::string> arguments) {
  arguments.insert(arguments.end(), kSettings.begin(), kSettings.end());
  return arguments;
}

}  // namespace

TEST_CASE("a run that is killed at random moments and resumed has the bits of the undisturbed one") {
  const TinyRun tiny;
  const auto start = std::chrono::steady_clock::now();
  REQUIRE(
      samba_command(with_settings({"train", "--config", tiny.file("tiny.json"), "--out", tiny.file("calm")})).code ==
      0);
  double whole = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const std::string want = read_file(tiny.path() / "calm/checkpoints/step-00000020.samba");
  const auto metrics = metrics_of(tiny.path() / "calm");

  std::mt19937 random(20261130);
  std::uniform_real_distribution<double> moment(0.0, 1.0);
  int kills = 0, finished = 0;
  for (int run = 0; kills < kills_wanted(); ++run) {
    const std::string name = "run" + std::to_string(run);
    const Path folder = tiny.path() / name;
    for (bool done = false; !done;) {
      const bool begun = std::filesystem::exists(folder / "latest");
      std::vector<std::string> arguments{"train", "--config",      tiny.file("tiny.json"),
                                         "--out", folder.string(), "--force"};
      if (begun) arguments = {"train", "--resume", folder.string()};
      Command command(with_settings(std::move(arguments)));
      const bool kill = kills < kills_wanted();
      if (kill) {
        std::this_thread::sleep_for(std::chrono::duration<double>(whole * moment(random)));
        command.kill();
      }
      const CommandResult result = command.finish();
      INFO(name << ": " << result.err);
      REQUIRE((result.code == 0 || (kill && result.code == 128 + SIGKILL)));
      done = result.code == 0;
      kills += done ? 0 : 1;
      whole *= done ? 0.9 : 1.02;  // keeps the moments within a run, however busy the machine is
    }
    ++finished;
    CHECK(read_file(folder / "checkpoints/step-00000020.samba") == want);
    CHECK(metrics_of(folder) == metrics);
    CHECK(samba_command({"verify", "--compare", folder.string(), tiny.file("calm")}).code == 0);
    std::filesystem::remove_all(folder);
  }
  WARN(kills << " kills survived, " << finished << " runs ended with the same bits");
}

TEST_CASE("a preparation that is killed at random moments and resumed has the bytes of the undisturbed one") {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "in");
  for (int file = 0; file < 6; ++file) {
    std::string text;
    for (int i = 0; i < 40000; ++i) {
      text += "line " + std::to_string(i * (file + 3) % 9973) + " of text no. " + std::to_string(file) + "\n";
    }
    write_text(folder / ("in/" + std::to_string(file) + ".txt"), text);
  }
  const auto options = [&](const std::string& out) {
    PrepareOptions chosen;
    chosen.paths = {(folder / "in").string()};
    chosen.out = folder / out;
    chosen.held_out = 0.1;
    chosen.deduplicate = true;
    chosen.documents.unit = DocumentUnit::line;
    chosen.shard_tokens = 1 << 19;
    chosen.threads = 2;
    chosen.between_states = std::chrono::milliseconds(0);  // behind every batch: most kills fall into such a record
    return chosen;
  };
  const auto contents = [&](const std::string& out) {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder / out)) {
      if (entry.path().filename() != ".lock") files[entry.path().filename()] = read_file(entry.path());
    }
    return files;
  };
  const auto start = std::chrono::steady_clock::now();
  prepare(options("calm"), model_opener());
  double whole = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const auto wanted = contents("calm");

  std::mt19937 random(20261130);
  std::uniform_real_distribution<double> moment(0.0, 1.0);
  int kills = 0, finished = 0, resumed = 0;
  while (kills < kills_wanted() / 2) {
    for (bool done = false; !done;) {
      PrepareOptions chosen = options("out");
      // Killed between its last write and its end.
      done = is_token_shards(chosen.out) && !std::filesystem::exists(chosen.out / "progress.json");
      if (done) break;
      chosen.resume = std::filesystem::exists(chosen.out / "progress.json");
      resumed += chosen.resume ? 1 : 0;
      const pid_t process = ::fork();
      if (process == 0) {
        try {
          prepare(chosen, model_opener());
          ::_exit(0);
        } catch (const std::exception& error) {
          std::fprintf(stderr, "%s\n", error.what());
          ::_exit(1);
        }
      }
      std::this_thread::sleep_for(std::chrono::duration<double>(whole * moment(random)));
      ::kill(process, SIGKILL);
      int status = 0;
      ::waitpid(process, &status, 0);
      done = WIFEXITED(status);
      REQUIRE((done ? WEXITSTATUS(status) == 0 : WTERMSIG(status) == SIGKILL));
      kills += done ? 0 : 1;
      whole *= done ? 0.9 : 1.02;
    }
    ++finished;
    const auto found = contents("out");
    for (const auto& [name, content] : wanted) {
      INFO(name);
      CHECK((found.contains(name) && found.at(name) == content));
    }
    CHECK(found.size() == wanted.size());
    CHECK_NOTHROW(TokenShards(folder / "out"));
    std::filesystem::remove_all(folder / "out");
  }
  CHECK(resumed > kills / 2);
  WARN(kills << " kills survived, " << finished << " preparations ended with the same bytes");
}

}  // namespace samba
