// --numeric-mode as a user meets it.
#include <catch2/catch.hpp>

#include "command.h"

namespace samba {
namespace {

using Catch::Contains;

}  // namespace

TEST_CASE("samba train --numeric-mode fast says that it promises nothing, saves under its mode, and goes on in it") {
  const TinyRun run;
  const CommandResult first = run.train("run", {"--steps", "2", "--numeric-mode", "fast", "--device", "cpu"});
  REQUIRE(first.code == 0);
  CHECK_THAT(first.err, Contains("numeric mode fast: nothing is promised of the bits"));
  const CommandResult shown = samba_command({"inspect", run.file("run"), "--json"});
  const auto description = nlohmann::json::parse(shown.out);
  CHECK(description.at("numeric_mode") == "fast");
  CHECK(description.at("format") == "samba.stack.v1");

  const CommandResult other = samba_command({"train", "--resume", run.file("run"), "--steps", "3"});
  CHECK(other.code == 2);
  CHECK_THAT(other.err, Contains("trained in the numeric mode fast") && Contains("--numeric-mode fast"));
  const CommandResult on =
      samba_command({"train", "--resume", run.file("run"), "--steps", "3", "--numeric-mode", "fast"});
  CHECK(on.code == 0);
}

TEST_CASE("samba train refuses deterministic, and identical runs another mode") {
  const TinyRun run;
  const CommandResult refused = run.train("no", {"--steps", "1", "--numeric-mode", "deterministic"});
  CHECK(refused.code == 2);
  CHECK_THAT(refused.err, Contains("deterministic is forward only"));
  REQUIRE(run.train("run", {"--steps", "1"}).code == 0);
  const CommandResult resumed =
      samba_command({"train", "--resume", run.file("run"), "--steps", "2", "--numeric-mode", "fast"});
  CHECK(resumed.code == 2);
  CHECK_THAT(resumed.err, Contains("trained in the numeric mode identical"));
}

TEST_CASE("decode, prefill and verify --model run in every mode; verify --cases in identical alone") {
  const TinyRun run;
  REQUIRE(run.train("run", {"--steps", "1"}).code == 0);
  const std::string model = run.file("run");
  for (const std::string mode : {"deterministic", "fast"}) {
    CAPTURE(mode);
    const CommandResult decoded =
        samba_command({"decode", "--model", model, "--prompt", "ab", "--max-tokens", "4", "--numeric-mode", mode});
    CHECK(decoded.code == 0);
    CHECK_THAT(decoded.err, Contains("numeric mode " + mode));
    CHECK(samba_command({"prefill", "--model", model, "--prompt", "ab", "--numeric-mode", mode}).code == 0);
    const CommandResult checked = samba_command({"verify", "--model", model, "--numeric-mode", mode});
    CHECK(checked.code == 0);
    CHECK_THAT(checked.out, Contains("equality is not promised") && !Contains("decode equals prefill"));
    const CommandResult cases =
        samba_command({"verify", "--cases", std::string(SAMBA_GOLDEN_DIR) + "/core/linear_5x7x9.safetensors",
                       "--numeric-mode", mode});
    CHECK(cases.code == 2);
    CHECK_THAT(cases.err, Contains("identical only"));
  }
  const CommandResult reference =
      samba_command({"decode", "--model", model, "--prompt", "ab", "--device", "reference", "--numeric-mode", "fast"});
  CHECK(reference.code == 2);
  CHECK_THAT(reference.err, Contains("not offered by the device reference"));
}

}  // namespace samba
