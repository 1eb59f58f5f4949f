// samba verify: the reference cases on the chosen device, and the checks of a checkpoint.

#include "commands.h"
#include "samba/core/error.h"

namespace samba::apps {

void add_verify_command(CLI::App& app, CommandLine& line) {
  CLI::App* command = app.add_subcommand("verify", "compare this machine, or a checkpoint, with the reference");
  line.on(command, "samba verify --cases test/golden",
          []() -> int { refuse_unsupported("samba verify has no suites in this build"); });
}

}  // namespace samba::apps
