// SPDX-License-Identifier: Apache-2.0
// Dropout in the wide path: between the weights and the values, so that denominators and lse never see it. Kept weights are not divided by
// 1 - p one by one: the finished row is.

/// Dropped weights become 0 and hidden, so that no value of theirs is ever multiplied. kept: [kTileKeys + 1].
template <class Product, int NV>
static Visible drop_weights(const ForwardProblem& p, const RowBlock& b, const KeyTile& tile, const Visible& v, float* weights,
                            std::uint64_t* kept) noexcept {
  const int first = v.begin / 4 * 4;
  kept_rows(p.scoring.dropout, {b.first_row, b.rows, p.q.group}, tile.index * kTileKeys + first, v.end - first, kept + first);
  kept[v.end] = 0;  // a last word may have one key only
  for (int k = v.begin; k < v.end; k += Product::kElements) {
    for (int j = 0; j < NV; ++j) {
      float* word = weights + (k / Product::kElements * NV + j) * kLanes;
      store(word, hide(Product{}, load(word), kept + k, j * kLanes));
    }
  }
  for (int k = v.begin; v.bits != nullptr && k < v.end; ++k) kept[k] &= v.bits[k];
  return {v.begin, v.end, kept};
}
