// What the program does where it can do nothing else: memory runs out, or a mapped page is lost.
#pragma once

namespace samba::apps {

// Keeps some memory back, which is set free when an allocation fails: what is left to do then (to take down what was
// begun, to say so) needs a little. Where even that is not enough, or a page of a mapped file cannot be read (its
// device failed, or it became shorter), the program ends with a message and exit code 4.
void prepare_last_resort();

}  // namespace samba::apps
