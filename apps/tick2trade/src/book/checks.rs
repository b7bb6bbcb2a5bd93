//! What always holds of books, by going through them.

use super::{Books, Level, Side};

impl Books {
    /// Checks what always holds, by going through everything: levels sorted, their sums right,
    /// every order linked where it belongs. For tests; `Err` says what does not hold.
    #[doc(hidden)]
    pub fn check(&self) -> Result<(), String> {
        let mut found = 0;
        for (index, book) in self.iter().enumerate() {
            for side in [Side::Buy, Side::Sell] {
                let mut better = None;
                for level in book.levels(side) {
                    found += self.check_level(index, side, better, level)?;
                    better = Some(level.price);
                }
            }
        }
        if found == self.orders.len() {
            Ok(())
        } else {
            Err(format!("{} orders in the table, {found} in levels", self.orders.len()))
        }
    }

    /// Checks what a message changed: the level of a price, if there is one, and the best one.
    pub(super) fn check_touched(&self, book: usize, side: Side, price: u32) -> Result<(), String> {
        let levels = self.books[book].side(side);
        for index in [levels.find(price).ok(), levels.len().checked_sub(1)].into_iter().flatten() {
            let better = (index + 1 < levels.len()).then(|| levels.get(index + 1).level.price);
            self.check_level(book, side, better, levels.get(index).level)?;
        }
        Ok(())
    }

    /// Checks a level and how it stands to the next better one; says how many orders it has.
    fn check_level(
        &self,
        book: usize,
        side: Side,
        better: Option<u32>,
        level: Level,
    ) -> Result<usize, String> {
        let locate = self.books[book].locate;
        let is_behind = better.is_none_or(|better| match side {
            Side::Buy => level.price < better,
            Side::Sell => level.price > better,
        });
        if !is_behind {
            return Err(format!("{locate} {side:?}: {level:?} stands behind {better:?}"));
        }
        let (mut orders, mut shares) = (0, 0);
        for order in self.orders_at(locate, side, level.price) {
            (orders, shares) = (orders + 1, shares + u64::from(order.shares));
            if order.shares == 0 {
                return Err(format!("{locate} {side:?}: {order:?} has no shares"));
            }
            if orders > level.orders {
                break;
            }
        }
        if (orders, shares) == (level.orders, level.shares) && orders != 0 {
            Ok(orders as usize)
        } else {
            Err(format!("{locate} {side:?}: {level:?}, and {orders} orders of {shares} shares"))
        }
    }
}
