// The Error that a call throws.
#pragma once

#include <catch2/catch.hpp>

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

}  // namespace samba
