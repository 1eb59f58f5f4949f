// The Error that a call throws.
#pragma once

#include <catch2/catch.hpp>
#include <string>

#include "samba/core/error.h"

namespace samba {

template <class Call>
Error error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  FAIL("nothing was thrown");
  throw;
}

// The message of a refusal of this kind; "accepted" where nothing is thrown.
template <class Call>
std::string message_of(ErrorKind kind, Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(error.kind() == kind);
    return error.what();
  }
  return "accepted";
}

}  // namespace samba
