use super::*;

#[cfg(not(feature = "kernel"))]
#[test]
fn without_the_kernel_there_is_no_verifier() {
    let error = script_verifier().err().unwrap();
    assert!(error.to_string().contains("built without the feature kernel"));
}

#[cfg(feature = "kernel")]
mod with_kernel {
    use super::*;
    use apus_chain::{
        BlockLayout, Header, Network, Params, ScriptError, SignetFault, Txid, VERIFY_P2SH,
        VERIFY_TAPROOT, VERIFY_WITNESS, check_signet_solution, signet_spend,
    };
    use std::borrow::Cow;

    /// One block, reduced to the parts that its solution needs.
    struct Block {
        header: Header,
        coinbase: Vec<u8>,
        txids: Vec<Txid>,
    }

    impl Block {
        fn read(raw: &[u8]) -> Self {
            let mut layout = BlockLayout::new();
            let view = layout.read(raw).unwrap();
            let txids =
                view.txs().map(|tx| Txid(apus_hash::sha256d(&tx.id_parts().concat()))).collect();
            let coinbase = view.tx(0).unwrap().raw().to_vec();
            Self { header: Header::parse(view.header()), coinbase, txids }
        }

        fn check(&self, params: &Params) -> Result<(), SignetFault> {
            let verifier = script_verifier().unwrap();
            check_signet_solution(
                params,
                &self.header,
                &self.coinbase,
                &self.txids,
                verifier.as_ref(),
            )
            .map_err(|error| error.fault)
        }

        /// Returns where the push with the solution begins in the coinbase.
        fn solution_at(&self) -> usize {
            let mark = [0xec, 0xc7, 0xda, 0xa2];
            self.coinbase.windows(4).rposition(|window| window == mark).unwrap() + 4
        }
    }

    /// The default signet, heights 0 to 120.
    fn blocks() -> Vec<Block> {
        let path = "/../../fixtures/signet-120/blocks/blk00000.dat";
        let bytes = std::fs::read(format!("{}{path}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        let mut rest = &bytes[..];
        let mut blocks = Vec::new();
        while let Some((prefix, after)) = rest.split_first_chunk::<8>() {
            assert_eq!(prefix[..4], Network::Signet.magic());
            let size = u32::from_le_bytes(*prefix.last_chunk().unwrap()) as usize;
            blocks.push(Block::read(&after[..size]));
            rest = &after[size..];
        }
        blocks
    }

    #[test]
    fn every_real_signet_block_is_signed() {
        let blocks = blocks();
        assert_eq!(blocks.len(), 121);
        for (height, block) in blocks.iter().enumerate() {
            assert_eq!(block.check(Params::of(Network::Signet)), Ok(()), "height {height}");
        }
    }

    const INVALID: Result<(), SignetFault> = Err(SignetFault::Script(ScriptError::Invalid));

    #[test]
    fn a_changed_signature_is_refused() {
        for mut block in blocks().into_iter().skip(1).step_by(17) {
            // A bit in the middle of the signature, inside the number R: after the two lengths, the
            // empty element and the push.
            let at = block.solution_at() + 20;
            block.coinbase[at] ^= 1;
            assert_eq!(block.check(Params::of(Network::Signet)), INVALID);
        }
    }

    #[test]
    fn a_changed_block_is_refused() {
        let params = Params::of(Network::Signet);
        for change in [
            (|block| block.header.version ^= 1) as fn(&mut Block),
            |block| block.header.prev.0[7] ^= 1,
            |block| block.header.time ^= 1,
            // Change the lock time; any byte of the coinbase outside the solution would do.
            |block| *block.coinbase.last_mut().unwrap() ^= 1,
            |block| block.txids.push(Txid([7; 32])),
        ] {
            let mut block = blocks().swap_remove(60);
            change(&mut block);
            assert_eq!(block.check(params), INVALID);
        }
        // Target and nonce are not signed: the producer grinds them afterwards.
        let mut block = blocks().swap_remove(60);
        (block.header.nonce, block.header.bits) = (1, 2);
        assert_eq!(block.check(params), Ok(()));
    }

    #[test]
    fn a_missing_solution_passes_a_trivial_challenge_only() {
        let mut block = blocks().swap_remove(1);
        let at = block.solution_at();
        // Without its prefix the push is not a solution.
        block.coinbase[at - 1] ^= 1;
        assert_eq!(block.check(Params::of(Network::Signet)), INVALID);
        let mut params = Params::of(Network::Signet).clone();
        params.signet_challenge = Some(Cow::Borrowed(&[0x51]));
        assert_eq!(block.check(&params), Ok(()));
        params.signet_challenge = Some(Cow::Borrowed(&[0x00]));
        assert_eq!(block.check(&params), INVALID);
    }

    #[test]
    fn a_script_that_cannot_run_is_neither_valid_nor_invalid() {
        let block = blocks().swap_remove(1);
        let params = Params::of(Network::Signet);
        let spend =
            signet_spend(params, &block.header, &block.coinbase, &block.txids).unwrap().unwrap();
        let verifier = script_verifier().unwrap();
        let verify = |amount, tx: &[u8], input, flags| {
            verifier.verify(&spend.challenge, amount, tx, input, flags)
        };
        assert_eq!(verify(0, &spend.to_sign, 0, VERIFY_P2SH), Ok(()));
        let taproot = VERIFY_P2SH | VERIFY_WITNESS | VERIFY_TAPROOT;
        assert_eq!(verify(0, &spend.to_sign, 0, taproot), Ok(()), "the only spent output is known");
        for (answer, why) in [
            (verify(u64::MAX, &spend.to_sign, 0, VERIFY_P2SH), "amount"),
            (verify(0, &spend.to_sign, 1, VERIFY_P2SH), "input"),
            (verify(0, &spend.to_sign, 0, 1 << 31), "unknown flags"),
            (verify(0, &spend.to_sign, 0, VERIFY_WITNESS), "witness without P2SH"),
            (
                verify(0, &with_two_inputs(&spend.to_sign), 0, taproot),
                "taproot with unknown spent outputs",
            ),
            (verify(0, &spend.to_sign[..20], 0, VERIFY_P2SH), "a truncated transaction"),
            (verify(0, &[], 0, VERIFY_P2SH), "no transaction"),
        ] {
            assert!(matches!(answer, Err(ScriptError::Setup(_))), "{why}: {answer:?}");
        }
    }

    /// Returns a transaction of one input without a witness, with that input duplicated.
    fn with_two_inputs(tx: &[u8]) -> Vec<u8> {
        let mut tx: bitcoin::Transaction = bitcoin::consensus::deserialize(tx).unwrap();
        tx.input.push(tx.input[0].clone());
        bitcoin::consensus::serialize(&tx)
    }
}
