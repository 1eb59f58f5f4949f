// Where files lie and what they are: long paths, spaces, UTF-8, symbolic links, read-only folders, pipes, full devices;
// and one trainer a folder.
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include <catch2/catch.hpp>

#include "command.h"
#include "error_of.h"
#include "samba/core/folder_lock.h"
#include "samba/core/streams.h"

namespace samba {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

const TinyRun& tiny() {
  static const TinyRun run;
  static const bool trained = run.train("run", {"--steps", "2"}).code == 0;
  if (!trained) throw std::runtime_error("the model was not trained");
  return run;
}

// Root passes over the permissions of files; this takes the right to do so from the process that is started.
void obey_permissions() {
  ::prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0);
  ::prctl(PR_CAPBSET_DROP, CAP_DAC_READ_SEARCH, 0, 0, 0);
}
CommandResult as_ordinary_user(const std::vector<std::string>& arguments) {
  return Command(arguments, 0, "/dev/null", obey_permissions).finish();
}
bool permissions_hold() {
  const TemporaryFolder folder;
  write_text(folder / "text", "x");
  fs::permissions(folder / "text", fs::perms::none);
  const CommandResult result = as_ordinary_user({"tokenize", "--model", tiny().file("run"), "--file", folder / "text"});
  return result.code == 2;
}

// The whole way in a folder of that name: train, resume, decode, prefill, convert, verify.
void work_in(const Path& folder) {
  INFO(folder.string());
  fs::create_directories(folder);
  write_text(folder / "a text.txt", read_file(tiny().path() / "text.txt"));
  nlohmann::json config = tiny_config("a text.txt");
  config["steps"] = 2;
  write_text(folder / "config.json", config.dump());
  const std::string run = folder / "run", converted = folder / "con verted", state = folder / "st ate";
  const auto must = [](const std::vector<std::string>& arguments) {
    const CommandResult result = samba_command(arguments);
    INFO(arguments[0] << ": " << result.err);
    REQUIRE(result.code == 0);
    return result.out;
  };
  must({"train", "--config", folder / "config.json", "--out", run});
  must({"train", "--resume", run, "--steps", "3"});
  must({"convert", run, converted});
  must({"prefill", "--model", converted, "--prompt", "the", "--save-state", state});
  CHECK(must({"decode", "--model", run, "--state", state, "--max-tokens", "3"}) ==
        must({"decode", "--model", run, "--prompt", "the", "--max-tokens", "3"}));
  must({"inspect", converted});
}

}  // namespace

TEST_CASE("names with spaces, UTF-8 and of the greatest length work everywhere") {
  const TemporaryFolder folder;
  work_in(folder / "with spaces and 'quotes'");
  work_in(folder / "\u30b5\u30f3\u30d0 \u00e9\u00f1 \U0001f3b6");
  Path deep = folder.path();
  while (deep.string().size() < 3000) deep /= std::string(200, 'd');
  work_in(deep);
  // The name of a file may take all that the file system gives.
  const std::string longest(255, 'n');
  REQUIRE(samba_command({"prefill", "--model", tiny().file("run"), "--prompt", "a", "--out", folder / longest}).code ==
          0);
  CHECK(fs::file_size(folder / longest) > 0);
  const CommandResult beyond =
      samba_command({"prefill", "--model", tiny().file("run"), "--prompt", "a", "--out", folder / (longest + "n")});
  CHECK(beyond.code == 2);
  CHECK_THAT(beyond.err, Contains("File name too long"));
}

TEST_CASE("symbolic links are followed to files and folders, and stay links") {
  const TemporaryFolder folder;
  fs::create_directory(folder / "real");
  fs::create_symlink("real", folder / "link");
  work_in(folder / "link" / "inside");
  CHECK(fs::exists(folder / "real/inside/run/latest"));
  fs::create_symlink(folder / "real/target", folder / "out");  // leads to nothing yet
  REQUIRE(samba_command({"prefill", "--model", tiny().file("run"), "--prompt", "a", "--out", folder / "out"}).code ==
          0);
  CHECK(fs::is_symlink(folder / "out"));
  CHECK(fs::file_size(folder / "real/target") > 0);
  fs::create_symlink("ring", folder / "ring");
  const CommandResult ring =
      samba_command({"prefill", "--model", tiny().file("run"), "--prompt", "a", "--out", folder / "ring"});
  CHECK(ring.code == 2);
  CHECK_THAT(ring.err, Contains("ring"));
}

TEST_CASE("a folder that cannot be written is told with its name, and nothing changes in it") {
  if (!permissions_hold()) {
    WARN("not run: the permissions of files do not hold for this user");
    return;
  }
  const TemporaryFolder folder;
  fs::copy(tiny().path() / "run", folder / "run", fs::copy_options::recursive);
  const auto set_writable = [&](bool writable) {
    for (const Path& part : {folder / "run", folder / "run/checkpoints"}) {
      fs::permissions(part, fs::perms::owner_write, writable ? fs::perm_options::add : fs::perm_options::remove);
    }
  };
  set_writable(false);
  const std::string run = folder / "run";
  // Reading needs no right to write.
  CHECK(as_ordinary_user({"decode", "--model", run, "--prompt", "a", "--max-tokens", "1"}).code == 0);
  CHECK(as_ordinary_user({"verify", "--model", run}).code == 0);
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"train", "--resume", run, "--steps", "4"},
        {"prefill", "--model", run, "--prompt", "a", "--logits", run + "/logits.safetensors"},
        {"prefill", "--model", run, "--prompt", "a", "--out", run + "/next"},
        {"decode", "--model", run, "--prompt", "a", "--max-tokens", "1", "--save-state", run + "/state"},
        {"convert", run, run + "/model.samba"},
        {"convert", run, run + "/model"},
        {"verify", "--model", run, "--record", run + "/record", "--prompt", "a"},
        {"train-tokenizer", run + "/config.json", "--out", run + "/tokenizer.json"}}) {
    const CommandResult result = as_ordinary_user(arguments);
    INFO(arguments[0] << ": " << result.err);
    CHECK(result.code == 2);
    CHECK_THAT(result.err, Contains("samba: cannot ") && Contains(run));
    CHECK(result.out.empty());  // nothing was computed for a file that cannot be
  }
  set_writable(true);
  CHECK(samba_command({"train", "--resume", run, "--steps", "4"}).code == 0);
}

TEST_CASE("prompts come out of pipes, results go into pipes and devices") {
  const TemporaryFolder folder;
  REQUIRE(::mkfifo((folder / "in").c_str(), 0600) == 0);
  REQUIRE(::mkfifo((folder / "out").c_str(), 0600) == 0);
  const std::string run = tiny().file("run");
  const auto fed = [&](const std::vector<std::string>& arguments, const std::string& input) {
    std::thread writer([&] { std::ofstream(folder / "in") << "the quick"; });
    const CommandResult result = Command(arguments, 0, input).finish();
    writer.join();
    INFO(result.err);
    CHECK(result.code == 0);
    return result.out;
  };
  const std::string wanted =
      samba_command({"decode", "--model", run, "--prompt", "the quick", "--max-tokens", "3"}).out;
  CHECK(wanted.size() > 3);
  for (const char* file : {"/dev/stdin", "-"}) {
    CHECK(fed({"decode", "--model", run, "--prompt-file", file, "--max-tokens", "3"}, folder / "in") == wanted);
  }
  CHECK(fed({"decode", "--model", run, "--prompt-file", folder / "in", "--max-tokens", "3"}, "/dev/null") == wanted);

  const std::string score = samba_command({"prefill", "--model", run, "--prompt", "the quick", "--score"}).out;
  std::string piped;
  std::thread reader([&] { piped = read_stream(folder / "out"); });
  CHECK(samba_command({"prefill", "--model", run, "--prompt", "the quick", "--score", "--out", folder / "out"}).code ==
        0);
  reader.join();
  CHECK(piped == score);
  CHECK(fs::is_fifo(folder / "out"));
  const CommandResult device =
      samba_command({"prefill", "--model", run, "--prompt", "the quick", "--score", "--out", "/dev/stdout"});
  CHECK(device.out == score);
}

TEST_CASE("a device that is full is a message and exit code 4, a reader that leaves early is none") {
  const std::string run = tiny().file("run");
  const auto into_full = [](const std::vector<std::string>& arguments) {
    return Command(arguments, 0, "/dev/null", [] { ::dup2(::open("/dev/full", O_WRONLY), STDOUT_FILENO); }).finish();
  };
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"--version"},
                                                    {"--help"},
                                                    {"decode", "--help"},
                                                    {"completion", "bash"},
                                                    {"inspect", run},
                                                    {"decode", "--model", run, "--prompt", "a", "--max-tokens", "3"},
                                                    {"prefill", "--model", run, "--prompt", "a", "--json"},
                                                    {"tokenize", "--model", run, "a"},
                                                    {"verify", "--list"},
                                                    {"verify", "--model", run}}) {
    const CommandResult result = into_full(arguments);
    INFO(arguments[0] << ": " << result.err);
    CHECK(result.code == 4);
    CHECK_THAT(result.err, Contains("No space left on device"));
  }
  const CommandResult file = samba_command({"prefill", "--model", run, "--prompt", "a", "--logits", "/dev/full"});
  CHECK(file.code == 4);
  CHECK(fs::is_character_file("/dev/full"));

  Command early({"decode", "--model", run, "--prompt", "a", "--max-tokens", "2000"});
  early.close_stdout();
  const CommandResult left = early.finish();
  INFO(left.err);
  CHECK(left.code == 0);
}

TEST_CASE("a second trainer is refused by the number of the first, whose end, however it comes, frees the folder") {
  const TinyRun run;
  const std::string folder = run.file("run");
  REQUIRE(run.train("run", {"--steps", "2"}).code == 0);
  Command first({"train", "--resume", folder, "--steps", "100000", "--json", "--set", "checkpoint.every=1000000"});
  REQUIRE(first.wait_for("\"step\":4"));
  const std::string number = read_file(run.path() / "run/.lock");
  const std::string holder = "in use by process " + number.substr(0, number.find(' '));
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"train", "--resume", folder},
        {"train", "--config", run.file("tiny.json"), "--out", folder, "--force"}}) {
    const CommandResult second = samba_command(arguments);
    CHECK(second.code == 2);
    CHECK_THAT(second.err, Contains(holder));
  }
  // Looking on is allowed.
  CHECK(samba_command({"decode", "--model", folder, "--prompt", "a", "--max-tokens", "1"}).code == 0);
  first.kill();
  CHECK(first.finish().code == 128 + SIGKILL);
  CHECK(samba_command({"train", "--resume", folder, "--steps", "3"}).code == 0);
}

TEST_CASE("a lock is given back at its end, and a note that is nonsense is not repeated") {
  const TemporaryFolder folder;
  { const FolderLock lock(folder.path()); }
  const FolderLock lock(folder.path());
  const auto message = [&] { return std::string(error_of([&] { FolderLock second(folder.path()); }).what()); };
  CHECK_THAT(message(), Contains("in use by process " + std::to_string(::getpid()) + " on "));
  write_text(folder / ".lock", "\x1b[2J");
  CHECK_THAT(message(), Contains("in use by another process"));
}

}  // namespace samba
