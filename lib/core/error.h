// Errors of samba: exceptions of a few kinds. The message names the argument, what was given and what is accepted.
// The command line turns a kind into an exit code (design of the commands: README, "Exit codes").
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace samba {

enum class ErrorKind {
  value,        // a value that is not accepted                      exit 2
  type,         // a value of the wrong type (a dtype, a JSON type)  exit 2
  unsupported,  // known, but not offered here                       exit 2
  corrupt,      // a damaged or foreign file                         exit 3
  resource,     // memory, disk, device                              exit 4
  check,        // a check failed, a non-finite loss                 exit 1
  internal,     // a defect of samba itself                          exit 70
};

// The class of a refusal because a computed value is NaN or infinite.
inline constexpr const char* kNonFiniteClass = "non_finite";

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}

  // For files: `error_class` is the class of the refusal (spec 62 sections 4 and 5), e.g. "truncated".
  Error(ErrorKind kind, std::string error_class, const std::string& message)
      : std::runtime_error(message), kind_(kind), class_(std::move(error_class)) {}

  ErrorKind kind() const noexcept { return kind_; }
  const std::string& error_class() const noexcept { return class_; }

 private:
  ErrorKind kind_;
  std::string class_;
};

[[noreturn]] inline void refuse_value(const std::string& message) { throw Error(ErrorKind::value, message); }
[[noreturn]] inline void refuse_type(const std::string& message) { throw Error(ErrorKind::type, message); }
[[noreturn]] inline void refuse_unsupported(const std::string& message) {
  throw Error(ErrorKind::unsupported, message);
}
[[noreturn]] inline void refuse_corrupt(std::string error_class, const std::string& message) {
  throw Error(ErrorKind::corrupt, std::move(error_class), message);
}

}  // namespace samba
