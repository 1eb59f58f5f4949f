// scripts/first_run.sh: from text to a trained model by one command, here on a small text and for a few steps.
#include <sys/wait.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstdio>
#include <filesystem>

#include "command.h"

namespace samba {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using nlohmann::json;

class FirstRun {
 public:
  FirstRun() {
    fs::create_directories(path() / "text");
    for (int i = 0; i < 400; ++i) {
      const std::string number = std::to_string(i);
      write_text(path() / "text" / (number + ".txt"),
                 "The file no. " + number + " tells that " + number + " times " + number + " is " +
                     std::to_string(i * i) + ".\nWhoever reads it knows so, and goes on to the next one.\n");
    }
    json config = tiny_config("none");
    config["steps"] = 6;
    config["model"]["vocab"] = 4096;
    config["data"] = {{"paths", {"none"}}, {"order", "permute.v1"}};
    config["evaluation"] = {{"every", 3}, {"keep_best", true}};
    config["checkpoint"] = {{"every", 3}, {"digest_every", 1}};
    write_text(path() / "config.json", config.dump());
  }
  Path path() const { return folder_.path(); }

  CommandResult run(const std::string& arguments) const {
    const std::string line =
        std::string("SAMBA=") + SAMBA_EXECUTABLE + " THREADS=1 " SAMBA_SOURCE_DIR "/scripts/first_run.sh --text " +
        (path() / "text").string() + " --config " + (path() / "config.json").string() + " " + arguments + " 2>&1";
    CommandResult result;
    std::FILE* const pipe = ::popen(line.c_str(), "r");
    REQUIRE(pipe != nullptr);
    std::array<char, 4096> buffer{};
    for (std::size_t got; (got = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
      result.out.append(buffer.data(), got);
    }
    const int status = ::pclose(pipe);
    result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return result;
  }

 private:
  TemporaryFolder folder_;
};

TEST_CASE("one command goes from text to a model, goes on where it stopped, and compares what it made") {
  const FirstRun first;
  const std::string whole = (first.path() / "whole").string(), parts = (first.path() / "parts").string();
  const CommandResult one = first.run(whole);
  INFO(one.out);
  REQUIRE(one.code == 0);
  CHECK_THAT(one.out, Contains("400 files") && Contains("pieces") && Contains("bytes a token") &&
                          Contains("step 6: held-back text: loss") && Contains("\nThe kernel") &&
                          Contains("checkpoint-step-00000006 "));
  for (const char* name :
       {"tokenizer.json", "shards/index.json", "run/latest", "run/best", "loss.svg", "report.html", "hashes"}) {
    CAPTURE(name);
    CHECK(fs::exists(Path(whole) / name));
  }
  const CommandResult half = first.run("--steps 4 " + parts);
  INFO(half.out);
  REQUIRE(half.code == 0);
  CHECK_THAT(half.out, Contains("checkpoint-step-00000004 "));
  const CommandResult again = first.run("--compare " + whole + "/hashes " + parts);
  INFO(again.out);
  CHECK(again.code == 0);
  CHECK_THAT(again.out, Contains("recorded hashes: 3 equal, 0 different"));

  const std::string hashes = read_file(Path(whole) / "hashes");
  std::string other = hashes;
  char& digit = other[other.size() - 2];
  digit = digit == '0' ? '1' : '0';
  write_text(first.path() / "other", other);
  const CommandResult refused = first.run("--compare " + (first.path() / "other").string() + " " + parts);
  CHECK(refused.code == 1);
  CHECK_THAT(refused.out, Contains("checkpoint-step-00000006: ") && Contains("2 equal, 1 different"));
}

}  // namespace
}  // namespace samba
