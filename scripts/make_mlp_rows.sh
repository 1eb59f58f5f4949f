#!/bin/sh
# Writes the rows that configs/mlp.json learns from: three classes, two clusters each, eight features.
# The numbers come from a 31-bit linear congruential generator, so every machine writes the same file:
#   scripts/make_mlp_rows.sh > configs/mlp/clusters.csv
# The data are made up; they may be used for anything.
exec awk '
function draw() { state = (state * 16807) % 2147483647; return state / 2147483647 }   # exact: below 2^53
function noise() { return draw() + draw() + draw() + draw() - 2 }                     # between -2 and 2
BEGIN {
  state = 20261130
  print "f1,f2,f3,f4,f5,f6,f7,f8,class"
  for (cluster = 0; cluster < 6; ++cluster)
    for (feature = 0; feature < 8; ++feature) centre[cluster, feature] = 3 * draw() - 1.5
  for (row = 0; row < 400; ++row) {
    cluster = int(draw() * 6)
    line = ""
    for (feature = 0; feature < 8; ++feature)
      line = line sprintf("%.3f,", centre[cluster, feature] + 0.9 * noise())
    print line cluster % 3
  }
}'
